"""API keys as macaroons: whoever holds one can make a narrower one of it, and nobody a wider one.

A key is a random head, a list of caveats, and a tail: the HMAC of the head under a secret that only the database knows, and
then of each caveat under the tail before it. To add a caveat takes the tail; to take one away would take the tail before.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tidings.errors import OperatorError

MAX_CAVEATS = 64
MAX_BYTES = 16 * 1024
_HEAD, _TAIL = 32, 32
_MARK = "tdk1-"
"""In front of every key, so that a person or a scanner knows one when it lies around."""
_LENGTH = 2


class BadKey(OperatorError):
    """What is no API key."""


@dataclass(frozen=True, slots=True)
class Caveat:
    """One limit. None limits nothing; an empty set allows nothing. Times are seconds since 1970."""

    actions: frozenset[str] | None = None
    buckets: frozenset[str] | None = None
    prefixes: frozenset[tuple[str, str]] | None = None
    not_before: int | None = None
    not_after: int | None = None

    def encode(self) -> bytes:
        said: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None:
                said[each.name] = sorted(value) if isinstance(value, frozenset) else value
        return json.dumps(said, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Caveat:
        """A caveat that is not understood limits in a way that is not known: a key with it is refused."""
        try:
            said = json.loads(data, object_pairs_hook=_once)
        except (ValueError, RecursionError):
            raise BadKey("The API key has a caveat that cannot be read.") from None
        if not isinstance(said, dict):
            raise BadKey("The API key has a caveat that cannot be read.")
        found: dict[str, Any] = {}
        for name, value in said.items():
            if name in ("actions", "buckets") and _all(value, str):
                found[name] = frozenset(value)
            elif name == "prefixes" and isinstance(value, list) and all(_all(each, str) and len(each) == 2 for each in value):
                found[name] = frozenset((bucket, prefix) for bucket, prefix in value)
            elif name in ("not_before", "not_after") and type(value) is int:
                found[name] = value
            else:
                raise BadKey(f"The API key has a caveat that is not understood: {name[:100]!r}.")
        return cls(**found)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _all(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(each) is kind for each in value)


@dataclass(frozen=True, slots=True)
class Macaroon:
    head: bytes
    caveats: tuple[bytes, ...]
    tail: bytes = field(repr=False)

    @classmethod
    def new(cls, secret: bytes) -> Macaroon:
        head = secrets.token_bytes(_HEAD)
        return cls(head, (), hmac.digest(secret, head, "sha256"))

    def restricted(self, caveat: Caveat) -> Macaroon:
        """The same key with one more limit. This needs no secret and no database."""
        data = caveat.encode()
        made = Macaroon(self.head, (*self.caveats, data), hmac.digest(self.tail, data, "sha256"))
        if len(made.caveats) > MAX_CAVEATS or len(made._bytes()) > MAX_BYTES:
            raise BadKey(f"An API key has {MAX_CAVEATS} caveats and {MAX_BYTES} bytes at most: this would be more.")
        return made

    def tails(self, secret: bytes) -> list[bytes]:
        """The tails from the first key on down to where this one should be. Whose tail was revoked has no valid children."""
        found = [hmac.digest(secret, self.head, "sha256")]
        for caveat in self.caveats:
            found.append(hmac.digest(found[-1], caveat, "sha256"))
        return found

    def is_genuine(self, secret: bytes) -> bool:
        return hmac.compare_digest(self.tails(secret)[-1], self.tail)

    def limits(self) -> list[Caveat]:
        return [Caveat.decode(data) for data in self.caveats]

    def __str__(self) -> str:
        return _MARK + base64.urlsafe_b64encode(self._bytes()).decode().rstrip("=")

    def _bytes(self) -> bytes:
        parts = [len(data).to_bytes(_LENGTH, "big") + data for data in self.caveats]
        return self.head + b"".join(parts) + self.tail

    @classmethod
    def parse(cls, text: str) -> Macaroon:
        """The key that this text is. Whether it is genuine takes its secret to say."""
        try:
            if not text.startswith(_MARK) or not text.isascii() or len(text) > 2 * MAX_BYTES:
                raise ValueError
            encoded = text.removeprefix(_MARK)
            data = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
            found = cls(data[:_HEAD], tuple(_caveats(data[_HEAD:-_TAIL])), data[-_TAIL:])
        except (ValueError, binascii.Error):
            raise BadKey("That is not an API key: it begins with tdk1- and is copied as a whole.") from None
        if len(data) < _HEAD + _TAIL or len(data) > MAX_BYTES or len(found.caveats) > MAX_CAVEATS or str(found) != text:
            raise BadKey("That is not an API key: it begins with tdk1- and is copied as a whole.")
        return found


def _caveats(data: bytes) -> Sequence[bytes]:
    found = []
    while data:
        length = int.from_bytes(data[:_LENGTH], "big")
        if len(data) < _LENGTH + length:
            raise ValueError("a caveat is cut off")
        found.append(data[_LENGTH : _LENGTH + length])
        data = data[_LENGTH + length :]
    return found
