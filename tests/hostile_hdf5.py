"""Hostile `.h5ad` files, made from a seed: the same seed makes the same files.

First the known kinds: valid HDF5 whose structure asks for too much, and single bytes that make HDF5 loop, crash or take all
memory. Then mutations of small valid files, aimed at what HDF5 trusts: addresses, sizes and counts in its trees, heaps and
object headers. Files of the newer form have checksums; these are made right again, so that the damage gets past them.
"""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import h5py
import numpy as np

DOI = "10.1234/good"
GIB = 1 << 30
_MIB = 1 << 20
_WORD = (1 << 32) - 1
_TAGS = (b"TREE", b"SNOD", b"HEAP", b"GCOL", b"OHDR", b"OCHK", b"FRHP", b"FHDB", b"FHIB", b"BTHD", b"BTLF", b"FAHD", b"FADB")
_EDGES = (0, 1, 2, 7, 8, 15, 16, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_WIDE = (*_EDGES, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


class Hostile(NamedTuple):
    name: str
    body: bytes


def corpus(seed: int, number: int) -> Iterator[Hostile]:
    """So many files: the known kinds, then mutations."""
    return islice(_endless(seed), number)


def _endless(seed: int) -> Iterator[Hostile]:
    yield from known()
    chance = random.Random(seed)
    bases = list(_bases())
    number = 0
    while True:
        name, body = chance.choice(bases)
        number += 1
        yield Hostile(f"{name}-{number}", _mutated(body, chance))


def good(doi: str = DOI) -> bytes:
    return _file(lambda uns: uns.create_dataset("doi", data=doi))


def known() -> Iterator[Hostile]:
    """Each kind once or a few times, the worst first."""
    yield Hostile("deflate-twice", deflated(2, 3 * GIB))
    for name, at, value in _COLLECTION:
        yield Hostile(name, _with_collection_byte(at, value))
    for name, make in {**_FILTERS, **_SHAPES, **_TYPES, **_LINKS, **_VALUES}.items():
        yield Hostile(name, _file(make))
    for version in ("earliest", "latest"):
        yield Hostile(f"wide-{version}", _file(_wide_group, version))
        yield Hostile(f"attributes-{version}", _file(_attributes, version))
    yield Hostile("uns-is-root", _rooted(lambda file: file.__setitem__("uns", file["/"])))
    yield Hostile("uns-is-type", _rooted(lambda file: file.__setitem__("uns", np.dtype("S8"))))
    yield Hostile("uns-is-soft-loop", _rooted(lambda file: file.__setitem__("uns", h5py.SoftLink("/uns"))))
    whole = good()
    yield Hostile("empty", b"")
    yield Hostile("signature", whole[:8])
    yield Hostile("superblock", whole[:96])
    yield Hostile("shifted", bytes(2048) + whole)
    yield Hostile("half", whole[: len(whole) // 2])
    yield Hostile("tree-of-itself", _tree_of_itself())
    yield Hostile("chunk-of-0-bytes", _chunk_of_0_bytes())


# The place of a byte from the start of the global heap's collection, where strings of variable length are; its new value.
_COLLECTION = (
    ("string-of-4-gib", -13, 0xFF),
    ("heap-object-size-loop", 8, 0x80),
    ("heap-object-index-loop", 9, 0x11),
    ("heap-object-size-wide", 24, 0xFF),
    ("heap-object-size-huge", 25, 0x01),
    ("heap-object-size-zero", 96, 0x00),
)


def deflated(times: int, size: int) -> bytes:
    """A value of 16 bytes whose only chunk becomes `size` zero bytes, after so many filters that decompress."""
    stored = _deflated_zeros(size)
    for _ in range(times - 1):
        stored = zlib.compress(stored, 9)
    return _file(lambda uns: _chunked(uns, [(h5py.h5z.FILTER_DEFLATE, (9,))] * times, stored))


def _deflated_zeros(size: int) -> bytes:
    """As zlib would compress them, without doing so: a block that was flushed can stand again and again."""
    packer = zlib.compressobj(9)
    start = packer.compress(bytes(_MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(_MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = (size % 65521) << 16 | 1  # Adler-32 of zeros
    return start + block * (size // _MIB - 1) + b"\x03\x00" + struct.pack(">I", checksum)


def _file(fill: Callable[[h5py.Group], object], version: str = "earliest") -> bytes:
    return _rooted(lambda file: fill(file.create_group("uns")), version)


def _rooted(fill: Callable[[h5py.File], object], version: str = "earliest") -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w", libver=version) as file:
        fill(file)
    return out.getvalue()


def _chunked(
    uns: h5py.Group, filters: list[tuple[int, tuple[int, ...]]], stored: bytes, chunk: int = 1, width: int = 16
) -> None:
    """The entry `doi` of one value, with this as the stored bytes of its chunk, whatever the filters would have made."""
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_chunk((chunk,))
    for code, values in filters:
        layout.set_filter(code, h5py.h5z.FLAG_OPTIONAL, values)
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(width)
    space = h5py.h5s.create_simple((1,), (h5py.h5s.UNLIMITED,))
    dataset = h5py.h5d.create(uns.id, b"doi", kind, space, layout)
    if stored:
        dataset.write_direct_chunk((0,), stored)


_DEFLATE, _SHUFFLE = (h5py.h5z.FILTER_DEFLATE, (9,)), (h5py.h5z.FILTER_SHUFFLE, (16,))
_FLETCHER, _LZF = (h5py.h5z.FILTER_FLETCHER32, ()), (32000, (4, 261, 1 << 31))
_UNKNOWN = (31999, (1,) * 20)
_ZEROS = _deflated_zeros(64 * _MIB)
_SMALL = zlib.compress(b"10.1234/hidden..", 9)

Fill = Callable[[h5py.Group], object]
_FILTERS: dict[str, Fill] = {
    "deflate-once": lambda uns: _chunked(uns, [_DEFLATE], _deflated_zeros(GIB)),
    "deflate-small": lambda uns: _chunked(uns, [_DEFLATE], _ZEROS),
    "deflate-thrice": lambda uns: _chunked(uns, [_DEFLATE] * 3, zlib.compress(zlib.compress(_ZEROS))),
    "deflate-32": lambda uns: _chunked(uns, [_DEFLATE] * 32, _SMALL),
    "shuffle-32": lambda uns: _chunked(uns, [_SHUFFLE] * 32, b"10.1234/shuffled"),
    "fletcher-32": lambda uns: _chunked(uns, [_FLETCHER] * 32, b"10.1234/summed.." * 9),
    "shuffle-deflate-fletcher": lambda uns: _chunked(uns, [_SHUFFLE, _DEFLATE, _FLETCHER], _SMALL),
    "lzf-lies": lambda uns: _chunked(uns, [_LZF], b"\xff" * 64),
    "lzf-deflate": lambda uns: _chunked(uns, [_LZF, _DEFLATE], zlib.compress(b"\xe0\xff\x00" * 20_000)),
    "scaleoffset": lambda uns: uns.create_dataset("doi", (16,), "i8", chunks=(16,), scaleoffset=3),
    "unknown-filter": lambda uns: _chunked(uns, [_UNKNOWN], b"x" * 16),
    "cut-off": lambda uns: _chunked(uns, [_DEFLATE], _SMALL[:-6]),
    "huge-chunk": lambda uns: _chunked(uns, [_DEFLATE], _deflated_zeros(256 * _MIB), chunk=1 << 24),
    "huge-chunk-empty": lambda uns: _chunked(uns, [], b"", chunk=(1 << 28) - 1),
    "huge-chunk-deflated-twice": lambda uns: _chunked(uns, [_DEFLATE] * 2, zlib.compress(_ZEROS), chunk=1 << 27),
    "wide-chunk": lambda uns: _chunked(uns, [], b"", chunk=1 << 16, width=4096),
}


def _of_type(uns: h5py.Group, kind: Any, extent: tuple[int, ...] = ()) -> None:
    space = h5py.h5s.create_simple(extent) if extent else h5py.h5s.create(h5py.h5s.SCALAR)
    h5py.h5d.create(uns.id, b"doi", kind, space)


def _text(size: int) -> Any:
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(size)
    return kind


def _compound(depth: int) -> Any:
    kind: Any = h5py.h5t.NATIVE_INT8
    for _ in range(depth):
        outer = h5py.h5t.create(h5py.h5t.COMPOUND, kind.get_size() + 1)
        outer.insert(b"a", 0, kind)
        outer.insert(b"b", kind.get_size(), h5py.h5t.NATIVE_INT8)
        kind = outer
    return kind


def _nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    kind: Any = h5py.h5t.NATIVE_INT8
    for _ in range(depth):
        kind = wrap(kind)
    return kind


_SHAPES: dict[str, Fill] = {
    "huge-extent": lambda uns: _of_type(uns, _text(1), (1 << 60,)),
    "huge-extents": lambda uns: _of_type(uns, _text(8), (1 << 20, 1 << 20, 1 << 18)),
    "many-dimensions": lambda uns: _of_type(uns, _text(64), (1,) * 32),
    "no-values": lambda uns: _of_type(uns, _text(64), (0, 1 << 40)),
    "many-small-chunks": lambda uns: uns.create_dataset("doi", data=np.array([b"x" * 8] * 16), chunks=(1,), compression="gzip"),
    "extended": lambda uns: uns.create_dataset("doi", (1 << 40,), "S8", chunks=(1,), maxshape=(None,)),
}
_TYPES: dict[str, Fill] = {
    "text-of-2-gib": lambda uns: _of_type(uns, _text((1 << 31) - 1)),
    "texts-of-1-gib": lambda uns: _of_type(uns, _text(GIB), (16,)),
    "compound-in-compound": lambda uns: _of_type(uns, _compound(500)),
    "vlen-in-vlen": lambda uns: _of_type(uns, _nested(400, h5py.h5t.vlen_create)),
    "array-in-array": lambda uns: _of_type(uns, _nested(24, lambda kind: h5py.h5t.array_create(kind, (2,)))),
    "array-of-text": lambda uns: _of_type(uns, h5py.h5t.array_create(_text(4096), (1 << 15,))),
    "opaque": lambda uns: _of_type(uns, h5py.h5t.create(h5py.h5t.OPAQUE, GIB)),
    "no-numpy-type": lambda uns: _of_type(uns, h5py.h5t.UNIX_D32LE),
    "committed": lambda uns: uns.__setitem__("doi", np.dtype([(f"field{each}", "S64") for each in range(500)])),
    "committed-nested": lambda uns: _compound(500).commit(uns.id, b"doi"),
    "of-committed": lambda uns: (_text(64).commit(uns.id, b"DOI"), _of_type(uns, h5py.h5t.open(uns.id, b"DOI"))),
}


def _external(uns: h5py.Group, path: str) -> object:
    return uns.create_dataset("doi", (1,), "S64", external=[(path, 0, h5py.h5f.UNLIMITED)])


def _virtual(uns: h5py.Group) -> object:
    layout = h5py.VirtualLayout((4,), "S16")
    layout[:] = h5py.VirtualSource(".", "/uns/doi", (4,))
    return uns.create_virtual_dataset("doi", layout)


_LINKS: dict[str, Fill] = {
    "soft-loop": lambda uns: uns.__setitem__("doi", h5py.SoftLink("/uns/doi")),
    "soft-ring": lambda uns: [uns.__setitem__(f"{each}", h5py.SoftLink(f"/uns/{(each + 1) % 9}")) for each in range(9)],
    "external-device": lambda uns: uns.__setitem__("doi", h5py.ExternalLink("/dev/zero", "/")),
    "external-itself": lambda uns: uns.__setitem__("doi", h5py.ExternalLink("file.h5ad", "/uns/doi")),
    "hard-ring": lambda uns: [uns.__setitem__(name, uns) for name in ("uns", "doi", "DOI", "citation")],
    "doi-is-root": lambda uns: uns.__setitem__("doi", uns.file["/"]),
    "external-values": lambda uns: _external(uns, "/dev/zero"),
    "external-passwd": lambda uns: _external(uns, "/etc/passwd"),
    "virtual-itself": _virtual,
}
_VALUES: dict[str, Fill] = {
    "long-text": lambda uns: uns.__setitem__("doi", "x" * (48 * _MIB)),
    "long-doi": lambda uns: uns.__setitem__("doi", "10.1234/" + "ä" * 40_000),
    "nul-in-doi": lambda uns: uns.create_dataset("doi", data=np.array([b"10.1234/nul\x00\x01\x1b[31mnul"])),
    "no-utf-8": lambda uns: uns.create_dataset("doi", data=np.array([b"10.1234/\xff\xfe\xed\xa0\x80"])),
    "large-fill": lambda uns: uns.create_dataset("doi", (4,), "S4000", fillvalue=b"10.1234/" + b"f" * 3900),
    "null-space": lambda uns: uns.__setitem__("doi", h5py.Empty("S16")),
}


def _wide_group(uns: h5py.Group) -> None:
    for each in range(400):
        uns[f"{'n' * 500}{each}"] = each
    uns["citation"] = DOI


def _attributes(uns: h5py.Group) -> None:
    doi = uns.create_dataset("doi", data=np.array([b"unpublished"]))
    for each in range(12):
        doi.attrs[f"a{each}"] = np.zeros(7000)
        uns.attrs[f"a{each}"] = "v" * 60_000


def _with_collection_byte(at: int, value: int) -> bytes:
    def fill(uns: h5py.Group) -> None:
        uns["doi"] = "none"
        uns["citation"] = f"https://doi.org/{DOI}"

    body = bytearray(_file(fill))
    body[body.index(b"GCOL") + at] = value
    return bytes(body)


def _tree_of_itself() -> bytes:
    """Each child of each node of the tree of names is that node."""
    body = bytearray(_file(_wide_group))
    for start in _places(bytes(body), b"TREE"):
        for entry in range(32):
            struct.pack_into("<Q", body, start + 32 + entry * 16, start)
        body[start + 5] = 1  # a level above the leaves
    return bytes(body)


def _chunk_of_0_bytes() -> bytes:
    """Its checksum alone has more bytes: HDF5 2.0 crashes over it."""
    body = bytearray(_file(_small_chunks))
    [tree] = [start for start in _places(bytes(body), b"TREE") if body[start + 4] == 1]  # 1: of chunks
    struct.pack_into("<I", body, tree + 24, 0)
    return bytes(body)


def _small_chunks(uns: h5py.Group) -> None:
    values = np.array([b"x" * 20] * 16)
    uns.create_dataset("doi", data=values, chunks=(1,), compression="gzip", shuffle=True, fletcher32=True)


def _bases() -> Iterator[Hostile]:
    """Small files, each with other structures of HDF5's."""
    kinds: dict[str, Fill] = {
        "text": lambda uns: [uns.__setitem__("doi", "none"), uns.__setitem__("citation", DOI)],
        "texts": lambda uns: uns.create_dataset("doi", data=np.array([b"none", DOI.encode()])),
        "chunks": _small_chunks,
        "growing": lambda uns: uns.create_dataset("doi", data=np.array([b"x" * 20] * 9), chunks=(2,), maxshape=(None,)),
        "strings": lambda uns: uns.create_dataset("doi", data=["x", "y", DOI], chunks=(1,), compression="gzip"),
        "names": lambda uns: [uns.__setitem__(f"entry{each}", each) for each in range(30)],
        "nested": lambda uns: [_of_type(uns, _compound(4)), uns.__setitem__("DOI", DOI)],
        "attributed": lambda uns: [uns.attrs.__setitem__(f"a{each}", "v" * 30) for each in range(20)],
        "fill": lambda uns: uns.create_dataset("doi", (4,), "S20", fillvalue=DOI.encode()),
    }
    for version in ("earliest", "latest"):
        for name, fill in kinds.items():
            body = _file(fill, version)
            assert _summed(body) == body, "the checksums of a file that nobody damaged are right"
            yield Hostile(f"{name}-{version}", body)


def _mutated(body: bytes, chance: random.Random) -> bytes:
    """One to three changes; nearly always with checksums that fit them."""
    damaged = bytearray(body)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        chance.choice((_other_address, _other_address, _edge, _edge, _byte, _byte, _cut))(damaged, chance)
    return _summed(bytes(damaged)) if chance.random() < 0.9 else bytes(damaged)


def _near_a_structure(body: bytearray, chance: random.Random) -> int:
    starts = [0, *(place for tag in _TAGS for place in _places(bytes(body), tag))]
    return min(max(0, chance.choice(starts) + chance.randrange(-48, 160)), max(0, len(body) - 8))


def _other_address(body: bytearray, chance: random.Random) -> None:
    """An address is one of eight bytes that leads into the file; now it leads to itself, or to another structure: a loop."""
    found = [at for at in range(0, len(body) - 8) if 0 < struct.unpack_from("<Q", body, at)[0] < len(body) and not at % 2]
    targets = [place for tag in _TAGS for place in _places(bytes(body), tag)]
    if found and targets:
        at = chance.choice(found)
        struct.pack_into("<Q", body, at, chance.choice([*targets, at, max(0, at - 16), len(body) - 4]))


def _edge(body: bytearray, chance: random.Random) -> None:
    form, values = chance.choice((("<H", _EDGES[:13]), ("<I", _EDGES), ("<Q", _WIDE)))
    if len(body) >= 8:
        struct.pack_into(form, body, _near_a_structure(body, chance), chance.choice(values))


def _byte(body: bytearray, chance: random.Random) -> None:
    if body:
        at = _near_a_structure(body, chance)
        body[at] = chance.choice((0, 0xFF, body[at] ^ 1, body[at] ^ 0x80, (body[at] + 1) & 0xFF, chance.randrange(256)))


def _cut(body: bytearray, chance: random.Random) -> None:
    """The end is missing, or one part of the file stands where another was."""
    if chance.random() < 0.3:
        del body[chance.randrange(len(body) + 1) :]
        return
    length, source, target = chance.randrange(4, 200), chance.randrange(len(body) + 1), chance.randrange(len(body) + 1)
    part = body[source : source + length]
    body[target : target + len(part)] = part


def _places(body: bytes, tag: bytes) -> list[int]:
    found, at = [], body.find(tag)
    while at >= 0:
        found.append(at)
        at = body.find(tag, at + 1)
    return found


def _summed(body: bytes) -> bytes:
    """With the checksums that HDF5 expects, where the newer form of its structures has some."""
    mended = bytearray(body)
    for start, end in _checked(body):
        if end + 4 <= len(body):
            struct.pack_into("<I", mended, end, _lookup3(bytes(mended[start:end])))
    return bytes(mended)


def _checked(body: bytes) -> Iterator[tuple[int, int]]:
    """Where a structure begins and where its checksum is, from the specification of the file format 3.0."""
    if body[:8] == b"\x89HDF\r\n\x1a\n" and body[8:9] in (b"\x02", b"\x03"):
        yield 0, 44
    for start in _places(body, b"OHDR"):
        if start + 32 <= len(body):
            flags = body[start + 5]
            at = start + 6 + 16 * bool(flags & 0x20) + 4 * bool(flags & 0x10)
            width = 1 << (flags & 3)
            yield start, at + width + min(int.from_bytes(body[at : at + width], "little"), len(body))
    for start in _places(body, b"FRHP"):
        yield start, start + 142
    records = {}
    for start in _places(body, b"BTHD"):
        yield start, start + 34
        if start + 34 <= len(body):
            width, depth = struct.unpack_from("<HH", body, start + 10)
            if depth == 0:  # its root is its only leaf
                records[body[start + 5]] = width * struct.unpack_from("<H", body, start + 24)[0]
    for start in _places(body, b"BTLF"):
        if start + 6 <= len(body) and body[start + 5] in records:
            yield start, start + 6 + records[body[start + 5]]


def _lookup3(data: bytes) -> int:
    """Bob Jenkins' `hashlittle`, which HDF5 uses for its metadata."""
    a = b = c = (0xDEADBEEF + len(data)) & _WORD
    padded = data + bytes(-len(data) % 4 + 12)
    words = struct.unpack(f"<{len(padded) // 4}I", padded)
    place = 0
    while True:
        a, b, c = (a + words[place]) & _WORD, (b + words[place + 1]) & _WORD, (c + words[place + 2]) & _WORD
        place += 3
        if place * 4 >= len(data):
            break
        for by in (4, 6, 8, 16, 19, 4):
            a, c = (a - c) & _WORD ^ _turned(c, by), (c + b) & _WORD
            a, b, c = b, c, a
    for by in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - _turned(b, by)) & _WORD
        a, b, c = b, c, a
    return b


def _turned(word: int, by: int) -> int:
    return (word << by | word >> (32 - by)) & _WORD
