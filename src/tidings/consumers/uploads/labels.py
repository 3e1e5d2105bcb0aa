"""What an upload is called: the rules for its name, and the two entries of an object's metadata that carry it.

Metadata travels in HTTP headers, which are ASCII. A name that is not goes as one encoded word of RFC 2047, which is also how S3
gives back what it could not write in a header.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import NamedTuple

from tidings.consumers.uploads.errors import UploadError
from tidings.events import keys

ORGANISATION, NAME = "organizationId", "name"

_CONTROL = re.compile(r"[\x00-\x1f\x7f\ufffe\uffff\ud800-\udfff]")
_PLAIN = re.compile(r"(?!.*  )(?!=\?)[!-~]([ -~]*[!-~])?")
_ENCODED = re.compile(r"=\?utf-8\?b\?([A-Za-z0-9+/]*={0,2})\?=", re.IGNORECASE)


class Upload(NamedTuple):
    """A row of the registry, but for its time."""

    organisation: str
    name: str


def key_of(upload: Upload) -> str:
    return f"{upload.organisation}/{upload.name}"


def named(organisation: str, name: str) -> Upload:
    """An upload of this name, if it can be one: the name is a part of an object's key."""
    upload = Upload(organisation, name)
    steps = name.split("/")
    if not name:
        problem = "it is empty"
    elif _CONTROL.search(name):
        problem = "it has a control character in it"
    elif any(step in ("", ".", "..") for step in steps):
        problem = "a step between its slashes is empty, . or .."
    elif (size := len(key_of(upload).encode())) > keys.MAX_BYTES:
        problem = f"with the organisation in front it has {size} bytes, and a key has {keys.MAX_BYTES} at most"
    else:
        return upload
    raise UploadError("BadRequest", f"{name[:100]!r} cannot be the name of an upload: {problem}.")


def metadata(upload: Upload) -> dict[str, str]:
    """What an object is put with."""
    return {ORGANISATION: _to_header(upload.organisation), NAME: _to_header(upload.name)}


def labelled(found: Mapping[str, str]) -> Upload | None:
    """What an object's metadata says it is. None if it does not say so, or says what no registry can hold."""
    values = {name.lower(): value for name, value in found.items()}  # S3 gives names back in lower case
    upload = Upload(*(_from_header(values.get(label.lower(), "")) for label in (ORGANISATION, NAME)))
    usable = all(each and not _CONTROL.search(each) and len(each.encode()) <= keys.MAX_BYTES for each in upload)
    return upload if usable else None


def _to_header(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    return f"=?UTF-8?B?{base64.b64encode(text.encode()).decode()}?="


def _from_header(text: str) -> str:
    word = _ENCODED.fullmatch(text)
    if word is None:
        return text
    try:
        return base64.b64decode(word[1], validate=True).decode()
    except ValueError:
        return text
