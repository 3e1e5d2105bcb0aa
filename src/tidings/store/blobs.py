"""The bodies of larger objects, in a folder or in another object store, under random names.

A blob is durable before its row is committed, and its row is gone before it is removed. So a row never lacks its blob;
a crash in between leaves a blob without a row, which costs space and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore

from tidings.errors import OperatorError
from tidings.threads import Threads

INLINE = 4096
"""Up to this many bytes a body lives in its row."""
PART = 5 * 1024 * 1024
"""What one upload keeps in memory, at most a few times: the smallest part that S3 accepts."""
_CHUNK = 256 * 1024
_READ = 128 * 1024
"""The server holds up to eight pieces for a client that takes them slowly: see `api.limits`."""
_SYNC_EVERY = 16 * 1024 * 1024
_LOCAL_PART = 1024 * 1024
_AT_ONCE = 512 * 1024
"""A body of this size is gathered and written in one go; what is larger streams."""
_LISTED = 50_000
COMMIT_TIME = timedelta(minutes=15)
"""How long a blob may wait for its row. After that nothing may refer to it any more."""
SWEEP_AGE = timedelta(hours=6)
"""Blobs older than this may be swept. Far beyond the time that they have to get their row: the clocks need not agree."""
_MARGIN = timedelta(hours=1)
_BLOB = re.compile(r"([0-9a-f]{2})/\1[0-9a-f]{30}")
_HALF_WRITTEN = re.compile(_BLOB.pattern + r"#[0-9]+")
_OWNER = "tidings-owner"
"""The object that says whose blobs these are."""
_CLOSE_SECONDS = 5.0
_THREADS = max(8, min(32, (os.cpu_count() or 1) + 4))
"""For calls to a local disk."""
_FOLDERS = [f"{number:02x}" for number in range(256)]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a body went: into `body`, to be written with the row, or into the blob of this name, before `commit_before`."""

    body: bytes | None = None
    blob: str | None = None
    commit_before: datetime | None = None


class Blobs:
    """One place for blobs, by its URL."""

    def __init__(self, url: str) -> None:
        if not url:
            raise OperatorError("No place for blobs: set TIDINGS_STORE__BLOBS, for example to file:///var/lib/tidings.")
        parts = urlsplit(url)
        self._folder = Path(unquote(parts.path)) if parts.scheme == "file" else None
        try:
            if self._folder is not None:
                _prepare(self._folder)
            self._store: Any = obstore.store.from_url(url)
        except (OSError, ValueError, obstore.exceptions.BaseError) as error:
            reason = str(error).partition("\n")[0]
            raise OperatorError(f"TIDINGS_STORE__BLOBS: {parts.scheme}://… cannot be opened: {reason}") from error
        # A folder has no smallest part, and gains nothing from two at once: less is held in memory for each upload.
        self._part, self._parts_at_once = (PART, 2) if self._folder is None else (_LOCAL_PART, 1)
        self._disk = Threads("disk", _THREADS)
        self._removals: set[asyncio.Task[None]] = set()

    async def keep(self, pieces: AsyncIterator[bytes], inline: int = INLINE) -> Kept:
        """Take a body in. If `pieces` raises, so does this, and nothing is kept."""
        start = bytearray()
        async for piece in pieces:
            start += piece
            if len(start) > _AT_ONCE:
                break
        else:
            data = bytes(start)
            return Kept(body=data) if len(data) <= inline else await self._write(data)
        return await self._write(_chain(bytes(start), pieces))

    async def _write(self, data: bytes | AsyncIterator[bytes]) -> Kept:
        began = datetime.now(UTC)
        random = secrets.token_hex(16)
        name = f"{random[:2]}/{random}"  # a single folder with millions of files is slow to list
        if self._folder is not None and not isinstance(data, bytes):
            data = _synced_meanwhile(self._disk, data, self._folder / name)
        # With an iterator this is a multipart upload, which is aborted if the iterator raises.
        await obstore.put_async(self._store, name, data, chunk_size=self._part, max_concurrency=self._parts_at_once)
        if self._folder is not None:
            try:
                await self._disk.run(_sync, self._folder / name)
            except OSError:
                self.discard(name)
                raise
        # In some stores a blob is as old as the beginning of its upload, which may have taken hours.
        return Kept(blob=name, commit_before=min(datetime.now(UTC) + COMMIT_TIME, began + SWEEP_AGE - _MARGIN))

    async def read(self, name: str, start: int, end: int) -> AsyncIterator[bytes]:
        """The bytes from `start` up to, not including, `end`. A missing blob raises FileNotFoundError here and now."""
        if self._folder is not None:
            return _read(self._disk, await self._disk.run(io.FileIO, self._folder / name), start, end)
        found = await obstore.get_async(self._store, name, options={"range": (start, end)})
        chunks: AsyncIterator[bytes] = aiter(found.stream(min_chunk_size=_CHUNK))
        return chunks

    def discard(self, name: str | None, after: float = 0.0) -> None:
        """Remove a blob that no row refers to (any more), beside the request: its client has no reason to wait.

        After some seconds, if somebody may still be reading; if the process ends before that, a sweep finds it.
        """
        if name is not None and after:
            asyncio.get_running_loop().call_later(after, self.discard, name)
        elif name is not None:
            removal = asyncio.ensure_future(self._remove(name))
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    async def close(self) -> None:
        """Wait for the removals under way."""
        if self._removals:
            await asyncio.wait(self._removals, timeout=_CLOSE_SECONDS)

    async def _remove(self, name: str) -> None:
        try:
            await self.remove(name)
        except Exception:
            _log.warning("blob %s could not be removed; nothing refers to it", name, exc_info=True)

    async def remove(self, name: str) -> None:
        """Remove a blob here and now; one that is gone already is fine."""
        with contextlib.suppress(FileNotFoundError):
            await obstore.delete_async(self._store, name)

    async def older_than(self, moment: datetime) -> AsyncIterator[list[str]]:
        """The names of all blobs that were last written before then, in batches. What is no blob is not among them."""
        async for batch in obstore.list(self._store, chunk_size=_LISTED):
            if names := [each["path"] for each in batch if each["last_modified"] < moment and _BLOB.fullmatch(each["path"])]:
                yield names

    async def owner(self, me: str, adopt: bool) -> str:
        """Whose blobs these are: mine, if nobody's so far or if I am to adopt them."""
        try:
            await obstore.put_async(self._store, _OWNER, me.encode(), mode="overwrite" if adopt else "create")
            return me
        except obstore.exceptions.AlreadyExistsError:
            found = await obstore.get_async(self._store, _OWNER)
            return bytes(await found.bytes_async()).decode()

    def remove_half_written(self, moment: datetime) -> int:
        """Remove what uploads that were killed before that had written so far; returns how many.

        In a folder obstore writes beside the blob's place, under NAME#NUMBER, and does not list that. Elsewhere they are
        multipart uploads of that store, which ends them by a rule of its own.
        """
        removed = 0
        for path in self._folder.glob("*/*#*") if self._folder is not None else ():
            with contextlib.suppress(FileNotFoundError):
                ours = _HALF_WRITTEN.fullmatch(f"{path.parent.name}/{path.name}")
                if ours and path.stat().st_mtime < moment.timestamp():
                    path.unlink()
                    removed += 1
        return removed


async def _read(disk: Threads, file: io.FileIO, start: int, end: int) -> AsyncIterator[bytes]:
    """obstore reads a file in pieces of 8 KiB, each on a thread: a tenth of the speed."""
    with file:
        while start < end:
            piece = await disk.run(os.pread, file.fileno(), min(end - start, _READ), start)
            if not piece:
                raise OSError(f"a blob ends at {start}, before {end}")
            start += len(piece)
            yield piece


async def _chain(start: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield start
    async for piece in rest:
        yield piece


async def _synced_meanwhile(disk: Threads, pieces: AsyncIterator[bytes], path: Path) -> AsyncIterator[bytes]:
    """Have the disk begin while more comes, so that there is less to wait for in the end. What it says goes: an error that
    was told here is not told again to who syncs the whole."""
    waiting = 0
    syncing: asyncio.Task[None] | None = None
    async for piece in pieces:
        yield piece
        waiting += len(piece)
        if waiting >= _SYNC_EVERY:
            waiting = 0
            if syncing is not None:
                await syncing
            syncing = asyncio.create_task(disk.run(_sync_half_written, path))
    if syncing is not None:
        await syncing


def _sync_half_written(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # obstore has given it another name: then all waits for the end
        _sync_one(path.with_name(f"{path.name}#1"))


def _prepare(folder: Path) -> None:
    """Make the folders beforehand, so that a write has only its own file and folder to make durable."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    missing = [folder / name for name in _FOLDERS if not (folder / name).is_dir()]
    for path in missing:
        path.mkdir(mode=0o700, exist_ok=True)
    if missing:
        _sync(folder)


def _sync(path: Path) -> None:
    # obstore writes a local file beside its place and renames it, without fsync: after a power cut it could be empty.
    _sync_one(path)
    _sync_one(path.parent)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
