"""PostObject: a file that a browser sends in a form, under a policy that somebody signed for it.

The form's fields stand where the headers of a PUT stand. What HTTP headers say does not count: nobody signed them. The
policy's conditions are checked on the fields as they will be used, with the file's name put in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import quote, urlencode, urlsplit

from tidings.access import permissions, policy
from tidings.api import headers, objects, tagging, xml
from tidings.api.body import Incoming
from tidings.api.form import Form, is_form
from tidings.api.parts import Parts
from tidings.api.request import Request, Target
from tidings.api.response import Response
from tidings.errors import CallerError
from tidings.events import names as events
from tidings.store import buckets, names

_FILENAME = "${filename}"
_HEADERS = frozenset({"content-type", "content-md5", *headers.STORED})
_PREFIXES = (headers.META, "x-amz-checksum-")
_ONLY_VALUE = {"acl": "private", "x-amz-acl": "private", "x-amz-storage-class": "STANDARD"}
_NOT_SERVED = frozenset({"redirect"})
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")
_STATUS = {"200": 200, "201": 201}
"""S3 answers 204 to anything else in success_action_status."""


@dataclass(frozen=True, slots=True)
class PostRequest:
    """A form whose policy holds. `request` is what a PUT of its file would be: the fields are its headers."""

    request: Request
    tagging: str | None
    status: int
    redirect: str | None
    url: str
    """Where the object is, as the sender of the form reached us."""


class File:
    """The file of a form, held to the sizes that its policy allows before its end is told."""

    def __init__(self, form: Form, smallest: int, largest: int) -> None:
        self._form = form
        self._smallest = smallest
        self._largest = largest
        self._size = 0
        self.ended = False

    async def next(self) -> bytes:
        piece = await self._form.next()
        self._size += len(piece)
        if self._size > self._largest:
            message = "Your proposed upload exceeds the maximum allowed size."
            raise CallerError("EntityTooLarge", message, MaxSizeAllowed=str(self._largest))
        if self._form.ended and self._size < self._smallest:
            message = "Your proposed upload is smaller than the minimum allowed size."
            raise CallerError("EntityTooSmall", message, ProposedSize=str(self._size), MinSizeAllowed=str(self._smallest))
        self.ended = self._form.ended
        return piece


def is_post(method: str, raw_query: bytes, raw_headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a request is a form. One with a query is not: it asks for another operation."""
    if method != "POST" or raw_query:
        return False
    types = [value.decode("latin-1") for name, value in raw_headers if name == b"content-type"]
    return len(types) == 1 and is_form(types[0])


async def opened(body: Incoming, raw_headers: Sequence[tuple[bytes, bytes]]) -> Form:
    """The form with its fields read, and nothing believed yet."""
    _check_headers(raw_headers)
    [content_type] = [value.decode("latin-1") for name, value in raw_headers if name == b"content-type"]
    form = Form(body, content_type)
    await form.read()
    return form


def _check_headers(raw_headers: Sequence[tuple[bytes, bytes]]) -> None:
    """A form is signed by its policy. A second signature, or a header that would need one, is refused."""
    sent = {name.decode("latin-1").lower() for name, _ in raw_headers}
    if "authorization" in sent:
        message = "The request is signed by the Authorization header, and a form by its policy: use one of them."
        raise CallerError("InvalidArgument", message, ArgumentName="Authorization")
    unsigned = sorted(name for name in sent if name.startswith("x-amz-"))
    if unsigned:
        listed = ", ".join(unsigned)[:500]
        message = f"Headers that must be signed are not: {listed}. Send them as fields of the form."
        raise CallerError("AccessDenied", message, HeadersNotSigned=listed)


def accepted(form: Form, request: Request, url: str, now: datetime) -> PostRequest:
    """What the form asks for, if its policy allows it. The policy's signature has been verified."""
    bucket, level = request.bucket, request.target.level
    if level != "bucket":
        message = "The specified method is not allowed against this resource."
        raise CallerError("MethodNotAllowed", message, Method="POST", ResourceType=level.upper())
    fields = {
        name: value if name in policy.FIELDS else value.replace(_FILENAME, form.filename) for name, value in form.fields.items()
    }
    allowed = policy.read(fields["policy"])
    if not fields.get("key"):
        message = "The bucket POST must contain a field named 'key', in front of the file."
        raise CallerError("UserKeyMustBeSpecified", message)
    if fields.get("bucket", bucket) != bucket:
        message = "The form's field bucket is not the bucket that it was sent to."
        raise CallerError("InvalidArgument", message, ArgumentName="bucket")
    allowed.check(fields, bucket, now)
    stated = _as_headers(fields)
    largest = objects.MAX_SIZE if allowed.largest is None else min(objects.MAX_SIZE, allowed.largest)
    upload = replace(
        request,
        target=Target(bucket, names.object_key(fields["key"].encode()), {}),
        headers=stated,
        raw_headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in stated.items()],
        body=File(form, allowed.smallest, largest),
    )
    status = _STATUS.get(fields.get("success_action_status", ""), 204)
    return PostRequest(upload, fields.get("tagging"), status, _redirect(fields), url)


def _as_headers(fields: Mapping[str, str]) -> dict[str, str]:
    """The fields that say something about the object, as a PUT would say it in headers: bytes as latin-1."""
    found: dict[str, str] = {}
    for name, value in fields.items():
        if name in _HEADERS or name.startswith(_PREFIXES):
            if not _VALUE.fullmatch(value) or not name.isascii():
                message = f"The field {name[:100]!r} has characters in it that a header cannot have."
                raise CallerError("InvalidArgument", message, ArgumentName=name[:100])
            found[name] = value.strip(" \t").encode().decode("latin-1")
        elif name in _NOT_SERVED or (_asks(name) and _ONLY_VALUE.get(name) != value):
            raise CallerError("NotImplemented", f"PostObject with {name[:100]} is not implemented.", Operation="PostObject")
    return found


def _asks(name: str) -> bool:
    return name in _ONLY_VALUE or (name.startswith("x-amz-") and name not in policy.FIELDS)


def _redirect(fields: Mapping[str, str]) -> str | None:
    """Where the browser goes afterwards: an absolute URL of the web, or nowhere."""
    value = fields.get("success_action_redirect")
    if not value:
        return None
    try:
        parts = urlsplit(value)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and re.fullmatch(r"[\x21-\x7e]{1,2048}", value)
    except ValueError:
        fine = False
    if not fine:
        message = f"success_action_redirect is {value[:100]!r}: send an absolute http or https URL."
        raise CallerError("InvalidArgument", message, ArgumentName="success_action_redirect")
    return value


async def serve_post(parts: Parts, post: PostRequest) -> Response:
    """Write the object as PutObject does, and answer as the form asks."""
    request = post.request
    request.require(permissions.WRITE, request.bucket, request.key)
    decoder = request.decoder()
    metadata = headers.metadata(request.raw_headers)
    tags = {} if post.tagging is None else tagging.read_tags(post.tagging.encode())
    # How long the file is shows at its end only, so the bucket is looked at first, whatever the size.
    await buckets.check_exists(parts.pool, request.project, request.bucket)
    kept = await parts.blobs.keep(request.pieces(decoder))
    content, done = await objects.commit_kept(parts, request, kept, decoder, metadata, tags, event=events.POST)
    return _answer(
        post, content.etag, {**headers.checksum_headers(decoder.checksums), **headers.version_header(done.version_id)}
    )


def _answer(post: PostRequest, etag: str, more: Mapping[str, str]) -> Response:
    request = post.request
    url = f"{post.url.rstrip('/')}/{quote(request.key, safe='/~')}"
    answer = {"etag": f'"{etag}"', "location": url, **more}
    if post.redirect is not None:
        found = urlencode({"bucket": request.bucket, "key": request.key, "etag": f'"{etag}"'})
        base, hash_mark, fragment = post.redirect.partition("#")
        joined = f"{base}{'&' if '?' in base else '?'}{found}{hash_mark}{fragment}"
        return Response(303, {**answer, "location": joined})
    if post.status != 201:
        return Response(post.status, answer)
    elements = [("Location", url), ("Bucket", request.bucket), ("Key", request.key), ("ETag", f'"{etag}"')]
    return Response(201, {**answer, "content-type": "application/xml"}, xml.document("PostResponse", elements, namespace=""))
