"""The DOI in an AnnData file (`.h5ad`), which is HDF5: an entry of the group `uns`.

The file is a stranger's: only what is in it is read, never what it links to elsewhere on this machine.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

NAMES = ("doi", "DOI", "source_doi", "study_doi", "source_study_doi", "publication_doi", "citation")
"""Entries that may hold it, in this order. `citation` is a sentence with a link, as CELLxGENE writes it."""
_DOI = re.compile(r"\b10\.[0-9]{4,9}/[^\s\"'<>]+")
_MOST_VALUES = 16
_MOST_BYTES = 4096


def doi(path: Path) -> str | None:
    """The first DOI found, bare and in lower case; None if there is none. OSError if it is not an HDF5 file."""
    import h5py

    with h5py.File(path, "r") as file:
        uns = _own(file, "uns")
        if not isinstance(uns, h5py.Group):
            return None
        for name in NAMES:
            for text in _texts(_own(uns, name)):
                if found := normalised(text):
                    return found
    return None


def normalised(text: str) -> str | None:
    """`https://doi.org/10.1101/ABC.` is `10.1101/abc`."""
    found = _DOI.search(text)
    return found[0].rstrip(".,;)]}").lower() if found else None


def _own(group: Any, name: str) -> Any:
    """A member that is in this very file: links lead elsewhere."""
    import h5py

    link = group.get(name, getlink=True)
    return group[name] if isinstance(link, h5py.HardLink) else None


def _texts(dataset: Any) -> list[str]:
    """What a small dataset of text holds. Its values may be in other files, too; such a one is not read."""
    import h5py

    if (
        not isinstance(dataset, h5py.Dataset)
        or dataset.is_virtual
        or dataset.external
        or not 0 < (dataset.size or 0) <= _MOST_VALUES
    ):
        return []
    if h5py.check_string_dtype(dataset.dtype) is None or dataset.dtype.itemsize > _MOST_BYTES:
        return []
    values = dataset[()]
    flat = values.ravel().tolist() if hasattr(values, "ravel") else [values]
    return [each.decode(errors="replace")[:_MOST_BYTES] for each in flat if isinstance(each, bytes)]
