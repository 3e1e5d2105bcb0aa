"""A form as a browser sends it (multipart/form-data, RFC 7578): some fields, then one file that is read as it arrives.

Written here because the parsers that there are spool a file before they hand it on, or call back from inside the parser;
S3 needs less than they do (the file is the last part that counts) and must hold the fields to a bound of its own.
"""

from __future__ import annotations

import re

from tidings.api.body import Incoming
from tidings.errors import CallerError

MAX_FIELDS = 20 * 1024
"""Bytes of everything in front of the file, the limit of S3's PostObject. As much may follow it, and counts for nothing."""

_MEDIA_TYPE = "multipart/form-data"
_BOUNDARY = re.compile(
    r""";[ \t]*boundary=(?:"([\w'()+,./:=? -]{0,69}[\w'()+,./:=?-])"|([\w'()+./:=?-]{1,70}))[ \t]*""", re.ASCII | re.I
)
_PARAMETER = re.compile(r';[ \t]*([A-Za-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))[ \t]*')
_PLAIN = frozenset({"7bit", "8bit", "binary"})


def is_form(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == _MEDIA_TYPE


class Form:
    """`read` takes in the fields; after it, `next` and `ended` are those of the file."""

    def __init__(self, body: Incoming, content_type: str) -> None:
        match = _BOUNDARY.fullmatch(content_type.strip()[len(_MEDIA_TYPE) :].strip())
        if match is None:
            raise _malformed("its Content-Type names no boundary.")
        self._body = body
        self._delimiter = b"\r\n--" + (match[1] or match[2]).encode()
        # The first delimiter stands at the very start, where no line end is in front of it.
        self._buffer = bytearray(b"\r\n")
        self._read = 0
        self.fields: dict[str, str] = {}
        self.filename = ""
        self.content_type = ""
        """What the part with the file says; empty if nothing."""
        self.ended = False

    async def read(self) -> None:
        """The fields, by their names in lower case, and the file's name."""
        if await self._until(self._delimiter):
            raise _malformed("it does not start with its boundary.")
        while await self._another():
            name, filename, content_type = _described(await self._until(b"\r\n\r\n"))
            if name == "file":
                # The name without the folders, which some browsers send too.
                self.filename = re.split(r"[/\\]", filename)[-1]
                self.content_type = content_type
                return
            try:
                value = (await self._until(self._delimiter)).decode()
            except UnicodeDecodeError:
                raise _malformed(f"the field {name[:100]!r} is not UTF-8.") from None
            if name in self.fields:
                raise CallerError("InvalidArgument", f"The field {name[:100]!r} comes twice.", ArgumentName=name[:100])
            self.fields[name] = value
        message = "POST requires exactly one file upload per request, in a field named file."
        raise CallerError("IncorrectNumberOfFilesInPostRequest", message)

    async def next(self) -> bytes:
        """The next piece of the file. With the last one `ended` is true."""
        while (at := self._buffer.find(self._delimiter)) < 0:
            sure = len(self._buffer) - len(self._delimiter)  # what is left may be the start of a delimiter
            if sure > 0:
                return self._take(sure)
            await self._more()
        piece = self._take(at)
        self._take(len(self._delimiter))
        self._read = 0
        await self._another()
        await self._pass_over()
        self.ended = True
        return piece

    async def _another(self) -> bool:
        """Whether another part follows the delimiter that was just read."""
        while len(self._buffer) < 2:
            await self._more()
        ending = self._take(2)
        if ending not in (b"\r\n", b"--"):
            raise _malformed("a boundary is followed by something that is not a line end.")
        return ending == b"\r\n"

    async def _until(self, end: bytes) -> bytes:
        """What is in front of `end`, which is taken too."""
        start = 0
        while (at := self._buffer.find(end, start)) < 0:
            start = max(0, len(self._buffer) - len(end) + 1)
            self._bound(len(self._buffer))
            await self._more()
        self._bound(at)
        found = self._take(at)
        self._take(len(end))
        return found

    def _bound(self, more: int) -> None:
        if self._read + more > MAX_FIELDS:
            message = f"Your POST request fields preceding the upload file were too large: use {MAX_FIELDS} bytes at most."
            raise CallerError("MaxPostPreDataLengthExceededError", message, MaxSizeAllowed=str(MAX_FIELDS))

    async def _pass_over(self) -> None:
        passed = len(self._buffer)
        self._buffer.clear()
        while passed <= MAX_FIELDS and not self._body.ended:
            passed += len(await self._body.next())
        if passed > MAX_FIELDS:
            raise _malformed(f"more than {MAX_FIELDS} bytes follow the file; nothing there counts.")

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        self._read += count
        return taken

    async def _more(self) -> None:
        if self._body.ended:
            raise _malformed("it ends before its last boundary.")
        self._buffer += await self._body.next()


def _described(block: bytes) -> tuple[str, str, str]:
    """The name of a part, in lower case, the name of the file in it, and its content type."""
    headers: dict[str, str] = {}
    try:
        lines = block.decode().split("\r\n")
    except UnicodeDecodeError:
        raise _malformed("the headers of a part are not UTF-8.") from None
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.strip().lower()
        if not colon or name in headers:
            raise _malformed(f"a part has the header {line[:100]!r}, which is no NAME: VALUE or comes twice.")
        headers[name] = value.strip()
    if headers.get("content-transfer-encoding", "binary").lower() not in _PLAIN:
        raise _malformed("a part has a Content-Transfer-Encoding; send it as it is.")
    parameters = _parameters(headers.get("content-disposition", ""))
    if not parameters.get("name"):
        raise _malformed('a part has no Content-Disposition: form-data; name="NAME".')
    return parameters["name"].lower(), parameters.get("filename", ""), headers.get("content-type", "")


def _parameters(disposition: str) -> dict[str, str]:
    kind = re.match(r"form-data[ \t]*", disposition, re.I)
    at = kind.end() if kind else -1
    parameters: dict[str, str] = {}
    while 0 <= at < len(disposition):
        match = _PARAMETER.match(disposition, at)
        if match is None or match[1].lower() in parameters:
            return {}
        parameters[match[1].lower()] = match[2].replace('\\"', '"') if match[2] is not None else match[3]
        at = match.end()
    return parameters


def _malformed(problem: str) -> CallerError:
    return CallerError(
        "MalformedPOSTRequest", f"The body of your POST request is not well-formed multipart/form-data: {problem}"
    )
