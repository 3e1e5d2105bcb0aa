"""The five checksums of S3 behind one incremental interface, and which of them a request promises for its body."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from awscrt import checksums as crt

from tidings.errors import CallerError

PREFIX = "x-amz-checksum-"


class Running(Protocol):
    """A checksum under way. The objects of hashlib are such already."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc:
    __slots__ = ("_function", "_size", "_value")

    def __init__(self, function: Callable[[bytes, int], int], size: int) -> None:
        self._function = function
        self._size = size
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = self._function(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm: its name as S3 writes it, how many bytes it yields, and how to start one."""

    name: str
    size: int
    start: Callable[[], Running]

    @property
    def header(self) -> str:
        return PREFIX + self.name.lower()

    def decode(self, value: str) -> bytes:
        """The bytes of a checksum as a client writes it."""
        digest = from_base64(value, self.size)
        if digest is None:
            raise CallerError(
                "InvalidRequest",
                f"The value of {self.header}, {value[:100]!r}, is not the base64 of {self.size} bytes: "
                f"send the {self.name} of the body, big-endian, in base64.",
            )
        return digest


# zlib is faster than awscrt for CRC32; for the two that Python lacks, awscrt uses the processor's own instructions.
_ALGORITHMS = (
    Algorithm("CRC32", 4, lambda: _Crc(zlib.crc32, 4)),
    Algorithm("CRC32C", 4, lambda: _Crc(crt.crc32c, 4)),
    Algorithm("CRC64NVME", 8, lambda: _Crc(crt.crc64nvme, 8)),
    Algorithm("SHA1", 20, lambda: hashlib.sha1(usedforsecurity=False)),
    Algorithm("SHA256", 32, hashlib.sha256),
)
BY_HEADER: Mapping[str, Algorithm] = {algorithm.header: algorithm for algorithm in _ALGORITHMS}

_KNOWN = ", ".join(algorithm.name for algorithm in _ALGORITHMS)
_NOT_VALUES = frozenset({PREFIX + "algorithm", PREFIX + "mode", PREFIX + "type"})
"""Headers that speak about checksums without carrying one."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The checksum that the body must have. `expected` is None while it is still to come in the trailer."""

    algorithm: Algorithm
    expected: bytes | None


def from_base64(value: str, size: int) -> bytes | None:
    """The `size` bytes that `value` is the one canonical base64 of, or None."""
    try:
        data = base64.b64decode(value, validate=True)
    except ValueError:
        return None
    return data if len(data) == size and base64.b64encode(data).decode() == value else None


_COMBINE: Mapping[str, Callable[[int, int, int], int]] = {
    "CRC32": crt.combine_crc32,
    "CRC32C": crt.combine_crc32c,
    "CRC64NVME": crt.combine_crc64nvme,
}


def of_parts(name: str | None, whole: bool, parts: Sequence[tuple[str | None, int]]) -> dict[str, str]:
    """The checksum of an object, by its header, from those of its parts and their sizes: of the whole, or of the checksums.

    None where a part has none.
    """
    if name is None or any(value is None for value, _ in parts):
        return {}
    algorithm = BY_HEADER[PREFIX + name.lower()]
    digests = [algorithm.decode(value or "") for value, _ in parts]
    if not whole:
        together = algorithm.start()
        together.update(b"".join(digests))
        return {algorithm.header: f"{base64.b64encode(together.digest()).decode()}-{len(parts)}"}
    value = int.from_bytes(digests[0], "big")
    for digest, (_, size) in zip(digests[1:], parts[1:], strict=True):
        value = _COMBINE[name](value, int.from_bytes(digest, "big"), size)
    return {algorithm.header: base64.b64encode(value.to_bytes(algorithm.size, "big")).decode()}


def trailer_names(headers: Mapping[str, str]) -> frozenset[str]:
    """The names that `x-amz-trailer` announces, in lower case."""
    return frozenset(name.strip().lower() for name in headers.get("x-amz-trailer", "").split(",") if name.strip())


def promised(headers: Mapping[str, str]) -> Promise | None:
    """What the headers promise: in a header, in an announced trailer, or nothing. S3 allows one checksum, not two."""
    in_headers = [name for name in headers if name.startswith(PREFIX) and name not in _NOT_VALUES]
    names = [*in_headers, *trailer_names(headers)]
    for name in names:
        if name not in BY_HEADER:
            raise CallerError("InvalidRequest", f"No checksum here is called {name[:100]!r}: use one of {_KNOWN}.")
    if len(names) > 1:
        raise CallerError("InvalidRequest", f"The request has several checksums, {', '.join(names)}: send only one.")
    algorithm = BY_HEADER[names[0]] if names else None
    _check_announcement(headers.get("x-amz-sdk-checksum-algorithm"), algorithm)
    if algorithm is None:
        return None
    return Promise(algorithm, algorithm.decode(headers[algorithm.header]) if in_headers else None)


def _check_announcement(announced: str | None, algorithm: Algorithm | None) -> None:
    if announced is None or (algorithm is not None and announced.upper() == algorithm.name):
        return
    header = PREFIX + announced.lower()
    if header in BY_HEADER:
        problem = f"has no {header} with it: send that header, or announce it in x-amz-trailer."
    else:
        problem = f"is not known: use one of {_KNOWN}."
    raise CallerError("InvalidRequest", f"The x-amz-sdk-checksum-algorithm {announced[:100]!r} {problem}")
