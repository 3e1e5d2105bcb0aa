"""What a bucket and an object may be called."""

from __future__ import annotations

import re

from tidings.errors import CallerError
from tidings.events import keys

# "Bucket naming rules" of the S3 user guide, for general purpose buckets.
_BUCKET = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
_RESERVED_STARTS = ("xn--", "sthree-", "amzn-s3-demo-")
_RESERVED_ENDS = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


def bucket_name(name: str) -> str:
    """The name, if it is one."""
    if not _BUCKET.fullmatch(name):
        problem = "use 3 to 63 lower-case letters, digits, dots and hyphens, with a letter or digit at both ends"
    elif _ADDRESS.fullmatch(name):
        problem = "it has the form of an IP address"
    elif name.startswith(_RESERVED_STARTS) or name.endswith(_RESERVED_ENDS):
        problem = f"S3 keeps {', '.join(_RESERVED_STARTS)} at the start and {', '.join(_RESERVED_ENDS)} at the end"
    else:
        return name
    message = f"{name[:100]!r} is not a bucket's name: {problem}."
    raise CallerError("InvalidBucketName", message, BucketName=name[:100])


def object_key(raw: bytes) -> str:
    """The key that these bytes spell. It is opaque: any text will do, `..` and `//` are nothing special in it."""
    if len(raw) > keys.MAX_BYTES:
        raise CallerError(
            "KeyTooLongError",
            f"The key has {len(raw)} bytes: use {keys.MAX_BYTES} at most.",
            Size=str(len(raw)),
            MaxSizeAllowed=str(keys.MAX_BYTES),
        )
    try:
        key = raw.decode()
    except UnicodeDecodeError:
        raise CallerError("InvalidURI", f"The key {raw[:100]!r} is not UTF-8.") from None
    if "\0" in key:
        raise CallerError("InvalidArgument", "The key has a NUL in it, which cannot be stored.", ArgumentName="key")
    return key
