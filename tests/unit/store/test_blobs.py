from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tidings.errors import OperatorError
from tidings.store import blobs
from tidings.store.blobs import INLINE, PART, Blobs, Kept


class Refused(Exception):
    pass


async def pieces(data: bytes, size: int = 300_000, fail: bool = False) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]
    if fail:
        raise Refused


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def read(store: Blobs, name: str, start: int, end: int) -> bytes:
    return b"".join([bytes(chunk) async for chunk in await store.read(name, start, end)])


@pytest.mark.parametrize("size", [0, 1, INLINE])
def test_a_small_body_is_kept_with_its_row(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    assert asyncio.run(Blobs(f"file://{tmp_path}").keep(pieces(data))) == Kept(body=data)
    assert files(tmp_path) == []


@pytest.mark.parametrize("size", [INLINE + 1, PART, PART + 1, 3 * PART + 7])
def test_a_larger_body_is_a_blob_that_can_be_read_whole_and_in_part(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)

    async def run() -> None:
        store = Blobs(f"file://{tmp_path}")
        kept = await store.keep(pieces(data))
        assert kept.body is None
        assert kept.blob is not None
        assert len(files(tmp_path)) == 1
        assert await read(store, kept.blob, 0, size) == data
        assert await read(store, kept.blob, 100, 4000) == data[100:4000]
        assert await read(store, kept.blob, size - 1, size) == data[-1:]

    asyncio.run(run())


@pytest.mark.parametrize("size", [1, INLINE + 1, PART + 1, 3 * PART])
def test_a_body_that_is_refused_at_its_end_leaves_nothing_behind(tmp_path: Path, size: int) -> None:
    with pytest.raises(Refused):
        asyncio.run(Blobs(f"file://{tmp_path}").keep(pieces(os.urandom(size), fail=True)))
    assert files(tmp_path) == []


def test_a_body_whose_request_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(PART)
            await asyncio.sleep(0.01)

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Blobs(f"file://{tmp_path}").keep(endless()), 0.3)
        for _ in range(100):
            if not files(tmp_path):
                return
            await asyncio.sleep(0.02)
        assert files(tmp_path) == []

    asyncio.run(run())


@pytest.mark.parametrize("size", [INLINE + 1, 2 * PART])
def test_a_local_blob_and_its_folder_are_synced_before_keep_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    store = Blobs(f"file://{tmp_path}")
    synced: list[str] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)  # the real one, and a note of it: nothing else shows that it was called
    name = asyncio.run(store.keep(pieces(bytes(size)))).blob
    assert name is not None
    path = (tmp_path / name).resolve()
    assert synced == [str(path), str(path.parent)]


def test_a_blob_that_cannot_be_made_durable_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    async def run() -> None:
        store = Blobs(f"file://{tmp_path}")
        monkeypatch.setattr(os, "fsync", broken)  # a disk that fails when it is told to keep what it has taken
        with pytest.raises(OSError, match="Input/output error"):
            await store.keep(pieces(bytes(INLINE + 1)))
        await store.close()

    asyncio.run(run())
    assert files(tmp_path) == []


def test_a_blob_may_be_discarded_twice_and_is_gone_when_the_store_is_closed(tmp_path: Path) -> None:
    async def run() -> None:
        store = Blobs(f"file://{tmp_path}")
        name = (await store.keep(pieces(bytes(INLINE + 1)))).blob
        assert name is not None
        for each in (name, name, None):
            store.discard(each)
        await store.close()
        with pytest.raises(FileNotFoundError):
            await store.read(name, 0, 1)

    asyncio.run(run())
    assert files(tmp_path) == []


def test_a_folder_with_odd_characters_in_its_name_can_hold_blobs(tmp_path: Path) -> None:
    folder = tmp_path / "with space ü"

    async def run() -> None:
        store = Blobs(folder.as_uri())
        name = (await store.keep(pieces(bytes(INLINE + 1)))).blob
        assert name is not None
        assert await read(store, name, 0, 3) == bytes(3)

    asyncio.run(run())
    assert len(files(folder)) == 1


@pytest.mark.parametrize("url", ["", "ftp://host/folder", "file:///proc/nowhere"])
def test_a_place_that_cannot_be_opened_is_the_operators_to_mend(url: str) -> None:
    with pytest.raises(OperatorError, match="TIDINGS_STORE__BLOBS"):
        Blobs(url)


def test_names_say_nothing_and_spread_over_folders(tmp_path: Path) -> None:
    async def run() -> list[str]:
        store = Blobs(f"file://{tmp_path}")
        kept = [await store.keep(pieces(bytes(INLINE + 1))) for _ in range(5)]
        return [each.blob for each in kept if each.blob]

    names = asyncio.run(run())
    assert len(set(names)) == 5
    assert all(name[:2] == name[3:5] and len(name) == 35 for name in names)
    assert len(list(tmp_path.iterdir())) == len(blobs._FOLDERS)
