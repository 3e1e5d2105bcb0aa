"""Which URLs are taken at all. There is one way to write a host here, so that nobody downstream can read another one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidings.outgoing.addresses import Address, parsed

MAX_LENGTH = 2048
# Everything that is not in here is refused: white space, control characters, `\`, `@` before the path, `#`, and all
# that is not ASCII, whose dots and digits some libraries take for ours.
_URL = re.compile(
    r"(https?)://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([1-9][0-9]{0,4}))?([/?][A-Za-z0-9\-._~!$&'()*+,;=:@/?%\[\]]*)?"
)
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_BROKEN_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Refused(Exception):
    """An endpoint that is not called. The words are for whoever named it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A URL that may be called, as far as its text tells, with its host in the one way to write it.

    `address` is there where the host is one.
    """

    url: str
    scheme: str
    host: str
    port: int
    address: Address | None

    @property
    def place(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read(url: str) -> Endpoint:
    """The endpoint that a URL names; `Refused` where it can be read in two ways, or is not one."""
    if len(url) > MAX_LENGTH:
        raise Refused(f"the URL is longer than {MAX_LENGTH} characters")
    match = _URL.fullmatch(url)
    if match is None or _BROKEN_PERCENT.search(url):
        raise Refused(f"{url[:100]!r} is not a URL of the form https://HOST[:PORT]/PATH in plain ASCII")
    scheme, written, port, rest = match.groups()
    host, address = _host(written)
    number = int(port) if port else {"http": 80, "https": 443}[scheme]
    if number > 65535:
        raise Refused(f"the port {port} is larger than 65535")
    where = (f"[{host}]" if ":" in host else host) + (f":{number}" if port else "")
    return Endpoint(f"{scheme}://{where}{rest or '/'}", scheme, host, number, address)


def _host(written: str) -> tuple[str, Address | None]:
    if written.startswith("["):
        address = _address(written[1:-1])
        return str(address), address
    labels = written.lower().split(".")
    if _NUMBER.fullmatch(labels[-1]):  # then resolvers take the whole for an IPv4 address, in many ways of writing
        address = _address(written)
        return str(address), address
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise Refused(f"{written[:100]!r} is not a host's name")
    return written.lower(), None


def _address(text: str) -> Address:
    try:
        return parsed(text)
    except ValueError:
        raise Refused(f"{text[:100]!r} is not an address as it is written: use a.b.c.d or [IPv6]") from None
