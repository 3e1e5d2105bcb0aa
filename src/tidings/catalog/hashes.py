"""The hash of a commit is that of its content: whoever has the same parents, operations and words has the same hash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tidings.catalog.model import compact

BEGINNING = hashlib.sha256(b"").hexdigest()
"""Where every repository begins: the hash of no commit, with nothing in it."""


def commit_hash(parents: Sequence[str], operations: str, meta: str) -> str:
    """`operations` and `meta` are the JSON texts that are stored. In a list of texts it is plain where each ends."""
    return hashlib.sha256(compact([list(parents), operations, meta]).encode()).hexdigest()
