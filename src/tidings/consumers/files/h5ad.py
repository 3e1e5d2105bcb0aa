"""The DOI in an AnnData file (`.h5ad`), which is HDF5: an entry of the group `uns`.

The file is a stranger's: only what is in it is read, never what it links to elsewhere on this machine. A damaged one can make
HDF5 take all memory, loop or crash, so the validator runs this in a process with limits (`h5ad_worker.py`). What can be seen
beforehand in the structure is refused here, before a value is read.
"""

from __future__ import annotations

import re
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

NAMES = ("doi", "DOI", "source_doi", "study_doi", "source_study_doi", "publication_doi", "citation")
"""Entries that may hold it, in this order. `citation` is a sentence with a link, as CELLxGENE writes it."""
CHUNK_BYTES = 64 * 1024
CHUNK_SETTING = "TIDINGS_FILES__H5AD_CHUNK_BYTES"
_DOI = re.compile(r"\b10\.[0-9]{4,9}/[^\s\"'<>\x00-\x1f\x7f-\x9f]+")
_MOST_VALUES = 16
_MOST_BYTES = 4096
_MOST_FILTERS = 3
"""shuffle, one that compresses, fletcher32: no writer of AnnData uses more."""
_SLACK = 1024
"""A filter may make a chunk a little larger: a checksum, a header."""


class TooLarge(Exception):
    """The structure of an entry asks for more than a DOI can need."""


def doi(path: Path, chunk_bytes: int = CHUNK_BYTES) -> str | None:
    """The first DOI found, bare and in lower case; None if there is none. OSError if it is not an HDF5 file."""
    import h5py

    with h5py.File(path, "r") as file:
        if not _holds(file.id, "uns", h5py.h5o.TYPE_GROUP):
            return None
        uns = h5py.h5g.open(file.id, b"uns")
        for name in NAMES:
            if not _holds(uns, name, h5py.h5o.TYPE_DATASET):
                continue
            for text in _texts(h5py.h5d.open(uns, name.encode()), name, chunk_bytes):
                if found := normalised(text):
                    return found
    return None


def normalised(text: str) -> str | None:
    """`https://doi.org/10.1101/ABC.` is `10.1101/abc`."""
    found = _DOI.search(text)
    doi = found[0].rstrip(".,;)]}").lower() if found else ""
    return doi if _DOI.fullmatch(doi) else None


def _holds(group: Any, name: str, kind: int) -> bool:
    """Whether this very file has such a member: links lead elsewhere. The member is not opened."""
    import h5py

    member = name.encode()
    if not group.links.exists(member) or group.links.get_info(member).type != h5py.h5l.TYPE_HARD:
        return False
    return bool(h5py.h5o.get_info(group, member).type == kind)


def _texts(dataset: Any, name: str, chunk_bytes: int) -> list[str]:
    """What a small dataset of text holds. Its values may be in other files, too; such a one is not read."""
    import h5py

    layout = dataset.get_create_plist()
    if layout.get_layout() == h5py.h5d.VIRTUAL or layout.get_external_count() or not _is_short_text(dataset):
        return []
    if layout.get_layout() == h5py.h5d.CHUNKED:
        _check_filters(layout, name)
        _check_chunks(dataset, layout.get_chunk(), name, chunk_bytes)
    values = h5py.Dataset(dataset)[()]
    flat = values.ravel().tolist() if hasattr(values, "ravel") else [values]
    return [each[:_MOST_BYTES].decode(errors="replace") for each in flat if isinstance(each, bytes)]


def _is_short_text(dataset: Any) -> bool:
    """From the description alone. The heap says how long a string of variable length is; the process's memory limits it."""
    import h5py

    kind = dataset.get_type()
    values = dataset.get_space().get_simple_extent_npoints()
    return bool(kind.get_class() == h5py.h5t.STRING and kind.get_size() <= _MOST_BYTES and 0 < values <= _MOST_VALUES)


def _check_filters(layout: Any, name: str) -> None:
    """One filter after another multiplies: two that compress make gigabytes of a few kilobytes."""
    number = layout.get_nfilters()
    if number > _MOST_FILTERS:
        raise TooLarge(f"uns/{name} has {number} filters, and {_MOST_FILTERS} are the most")
    codes = [layout.get_filter(each)[0] for each in range(number)]
    if len(set(codes)) < number:
        raise TooLarge(f"uns/{name} has the same filter more than once: {', '.join(map(str, codes))}")


def _check_chunks(dataset: Any, chunk: tuple[int, ...], name: str, most: int) -> None:
    """Both what a chunk becomes and what is stored of it: a filter reads all that is stored, whatever it should become."""
    size = prod(chunk) * dataset.get_type().get_size()
    if size > most:
        raise TooLarge(f"uns/{name} has chunks of {size} bytes, more than {most} ({CHUNK_SETTING})")
    for start in product(*(range(0, extent, step) for extent, step in zip(dataset.shape, chunk, strict=True))):
        stored = dataset.get_chunk_info_by_coord(start).size
        if stored > most + _SLACK:
            raise TooLarge(f"uns/{name} has a chunk with {stored} stored bytes, more than {most} ({CHUNK_SETTING})")
