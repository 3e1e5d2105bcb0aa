"""Virtual-host addressing: the bucket in front of a domain of ours, as in `photos.s3.example.com`.

Only the operator's domains count. Anything else, an address or a name that we do not know, is just the name that somebody
reached us by, and the bucket is in the path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_PORT = re.compile(r":[0-9]{1,5}$")


def host(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The Host header. One that comes twice names nothing that we know."""
    return ",".join([value.decode("latin-1").strip() for name, value in headers if name == b"host"])


@lru_cache(maxsize=1024)  # asked for every request, and the same few hosts come again and again
def bucket(host: str, domains: tuple[str, ...]) -> str | None:
    """The text in front of the longest domain that fits, or None where the path has the bucket."""
    name = _PORT.sub("", host.lower())
    if name in domains:
        return None
    fitting = [domain for domain in domains if name.endswith(f".{domain}")]
    return name[: -len(max(fitting, key=len)) - 1] if fitting else None
