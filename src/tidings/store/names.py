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
# What XML 1.0 has no way to write, and what breaks lines and terminals.
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ufffe\uffff]")


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
    """The key that these bytes spell.

    To the store it is opaque. What is refused is what others trip over who take keys for paths: a step up, an empty step,
    and characters that no XML listing can carry (docs/adr/0007).
    """
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
    if found := _CONTROL.search(key):
        message = f"The key {key[:100]!r} has the control character {found[0]!r} in it: leave it out or escape it."
        raise CallerError("InvalidArgument", message, ArgumentName="key")
    if "//" in key or ".." in key.split("/"):
        message = f"The key {key[:100]!r} has {'an empty step (//)' if '//' in key else 'a step up (..)'} in it: leave it out."
        raise CallerError("InvalidURI", message)
    return key
