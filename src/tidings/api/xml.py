"""XML in and out: documents as nested values, written in S3's namespace, and read without any of XML's dangers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree.ElementTree import Element, ParseError, TreeBuilder
from xml.sax.saxutils import escape

from defusedxml import DefusedXmlException
from defusedxml import ElementTree as SafeElementTree

from tidings.errors import CallerError

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
MAX_ELEMENTS = 1000
_MAX_DEPTH = 16
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]")
_WRITABLE = re.compile(r"[\t\n\r\x7f-\x9f]")

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
    """A value in a document. What XML 1.0 has no way to write becomes the replacement character."""
    return _CONTROL.sub(_reference, escape(value, {'"': "&quot;"}))


def _reference(found: re.Match[str]) -> str:
    return f"&#x{ord(found[0]):X};" if _WRITABLE.match(found[0]) else "\ufffd"


class _Bounded(TreeBuilder):
    """A tree of so many elements at most: a small body can hold a million, and building them would hold up everybody."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most
        self._depth = 0

    def start(self, tag: str, attributes: dict[str, str], /) -> Element:
        self._left -= 1
        self._depth += 1
        if self._left < 0 or self._depth > _MAX_DEPTH:
            raise malformed("it has too many elements, or they lie too deep")
        return super().start(tag, attributes)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)


def read(body: bytes, root: str, most: int = MAX_ELEMENTS) -> Element:
    """The document's root element, if it has this name, and at most so many elements are in it."""
    parser = SafeElementTree.XMLParser(target=_Bounded(most), forbid_dtd=True)
    try:
        parser.feed(body)
        element: Element = parser.close()
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
