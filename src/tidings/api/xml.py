"""XML in and out: documents as nested values, written in S3's namespace, and read without any of XML's dangers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree.ElementTree import Element, ParseError
from xml.sax.saxutils import escape

from defusedxml import DefusedXmlException
from defusedxml import ElementTree as SafeElementTree

from tidings.errors import CallerError

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
# S3 writes control characters as references. A parser of XML 1.0 may refuse some, but none of them gets lost.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]")

Node = tuple[str, "str | Iterable[Node]"]
"""(name, text or children)"""


def document(name: str, content: str | Iterable[Node], namespace: str = NAMESPACE) -> bytes:
    opening = f'{name} xmlns="{namespace}"' if namespace else name
    return f"{_DECLARATION}<{opening}>{_inner(content)}</{name}>".encode()


def _inner(content: str | Iterable[Node]) -> str:
    if isinstance(content, str):
        return text(content)
    return "".join([f"<{name}>{_inner(inner)}</{name}>" for name, inner in content])


def text(value: str) -> str:
    return _CONTROL.sub(lambda found: f"&#x{ord(found[0]):X};", escape(value, {'"': "&quot;"}))


def read(body: bytes, root: str) -> Element:
    """The document's root element, if it has this name."""
    try:
        element: Element = SafeElementTree.fromstring(body, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError, LookupError):
        raise malformed("it is not well-formed, or has a DOCTYPE") from None
    if local(element) != root:
        raise malformed(f"its root is {local(element)[:100]!r} where {root} is expected")
    return element


def child_texts(element: Element, allowed: frozenset[str]) -> dict[str, str]:
    """The text of each child. One that is not allowed, comes twice or has children of its own is refused."""
    found: dict[str, str] = {}
    for child in element:
        name = local(child)
        if name not in allowed:
            raise malformed(f"{local(element)} has {name[:100]!r} in it, which it cannot have")
        if name in found or len(child):
            raise malformed(f"{name} must come once in {local(element)} and hold text only")
        found[name] = child.text or ""
    return found


def location_constraint(body: bytes) -> str | None:
    """The region that a CreateBucketConfiguration names, or None. Everything else in it asks for what is not served."""
    if not body.strip():
        return None
    region = None
    for child in read(body, "CreateBucketConfiguration"):
        if local(child) != "LocationConstraint":
            raise CallerError("NotImplemented", f"CreateBucket with {local(child)[:100]} is not implemented.")
        if region is not None or len(child):
            raise malformed("LocationConstraint must come once and hold text only")
        region = (child.text or "").strip()
    return region or None


def local(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]


def malformed(problem: str) -> CallerError:
    return CallerError("MalformedXML", f"The XML of this request cannot be read: {problem}.")
