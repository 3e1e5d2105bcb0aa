"""What the operations of the API work with."""

from __future__ import annotations

from dataclasses import dataclass

from tidings.access.keys import KeyCache
from tidings.db.pool import Pool
from tidings.settings import Settings
from tidings.store.blobs import Blobs


@dataclass(frozen=True, slots=True)
class Parts:
    settings: Settings
    pool: Pool
    blobs: Blobs
    keys: KeyCache
