"""The later stage: reads each file, compares its SHA-256 with the client's, and links its source study by the DOI in it."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, LiteralString, NamedTuple

import psycopg

from tidings.consumers import staging
from tidings.consumers.files import registry
from tidings.consumers.files.h5ad_pool import H5adPool
from tidings.consumers.files.notification import sha256_of
from tidings.consumers.files.objects import Gone, Objects, Unreachable
from tidings.consumers.files.paths import SOURCE_DATASET
from tidings.consumers.files.refusals import Invalid
from tidings.consumers.files.settings import FilesSettings

Connection = psycopg.Connection[Any]
Progress = Callable[[int, int], None]

_log = logging.getLogger("tidings.files")
_BATCH = 64
"""Files whose findings are written together: what a crash may have to read again."""
_FOUND: Mapping[str, LiteralString] = {
    "id": "bigint",
    "sequencer": 'text collate "C"',
    "status": "text",
    "error": "text",
    "sha256_client": 'text collate "C"',
    "sha256_server": 'text collate "C"',
    "doi": "text",
}

# A null version that was written again meanwhile has another sequencer: what was found is of the one before, and is dropped.
# So is that there is no SHA-256 of the client's, where one has come meanwhile.
_WRITE = """
with linked as (
    update hat.files f
    set sha256_client = coalesce(f.sha256_client, n.sha256_client), sha256_server = n.sha256_server,
        integrity_status = n.status, integrity_error = n.error, integrity_checked_at = now(), updated_at = now(),
        source_study_id = case when f.file_type = 'source_dataset' then coalesce(s.id, f.source_study_id) end
    from pg_temp.found n left join hat.source_studies s on s.doi = n.doi
    where f.id = n.id and f.sequencer = n.sequencer
      and (f.sha256_client is null or n.sha256_client is not null or n.sha256_server is null)
    returning n.status, n.doi, s.id as study
)
select count(*) filter (where status = 'valid'), count(*) filter (where status = 'invalid'),
       count(*) filter (where status = 'error'), count(study), count(*) filter (where doi is not null and study is null)
from linked
"""


class _File(NamedTuple):
    id: int
    bucket: str
    key: str
    version_id: str | None
    etag: str
    sequencer: str
    file_type: str
    sha256_client: str | None


class _Finding(NamedTuple):
    """As staged."""

    id: int
    sequencer: str
    status: str
    error: str | None
    sha256_client: str | None
    sha256_server: str | None
    doi: str | None


class _Look(NamedTuple):
    """`stopped`: the search for the DOI was made to end, by a limit or a crash."""

    finding: _Finding
    stopped: bool = False


def validate(
    connection: Connection,
    objects: Objects,
    settings: FilesSettings,
    again: bool,
    threads: int,
    progress: Progress | None = None,
) -> Counter[str]:
    """Every file that was not looked at yet; with `again`, also those where that failed. The connection is in autocommit."""
    states = ["pending", "awaiting", *(["error"] if again else [])]
    columns = ", ".join(_File._fields)
    waiting = connection.execute(
        f"select {columns} from hat.files where integrity_status = any(%s) order by id".encode(), [states]
    ).fetchall()
    done: Counter[str] = Counter(files=0, valid=0, invalid=0, error=0, linked=0, unknown_doi=0, stopped=0)
    if progress:
        progress(0, len(waiting))
    with H5adPool(settings) as h5ads, ThreadPoolExecutor(threads) as pool:
        for batch in _batches(map(_File._make, waiting)):
            looks = list(pool.map(lambda file: _look(file, objects, h5ads), batch))
            done.update(_written(connection, batch, [look.finding for look in looks]))
            done.update(files=len(batch), stopped=sum(look.stopped for look in looks))
            if progress:
                progress(done["files"], len(waiting))
    return done


def _batches(files: Iterable[_File]) -> Iterator[list[_File]]:
    left = iter(files)
    while batch := list(islice(left, _BATCH)):
        yield batch


def _written(connection: Connection, files: list[_File], findings: list[_Finding]) -> Counter[str]:
    """A merge may write the same rows in another order: the locks of their keys come first, as there."""
    with connection.transaction():
        registry.hold(connection, [(file.bucket, file.key) for file in files])
        staging.stage(connection, "found", _FOUND, findings)
        [counted] = connection.execute(_WRITE).fetchall()
    return Counter(dict(zip(("valid", "invalid", "error", "linked", "unknown_doi"), counted, strict=True)))


def _look(file: _File, objects: Objects, h5ads: H5adPool) -> _Look:
    """All that can be said about one file. It is read once: its digest is made while it comes."""
    wanted = file.file_type == SOURCE_DATASET and file.key.lower().endswith(".h5ad")
    try:
        with tempfile.TemporaryDirectory(prefix="tidings-files-") as folder:
            copy = Path(folder) / "file.h5ad" if wanted else None
            body = objects.body(file.bucket, file.key, file.version_id, file.etag)
            server = _digest(body.chunks, copy)
            client = file.sha256_client or sha256_of(body.metadata)
            doi, stopped = _doi(file, copy, h5ads) if copy else (None, False)
    except (Gone, Unreachable, Invalid, OSError) as error:
        return _Look(_Finding(file.id, file.sequencer, "error", str(error)[:1000], None, None, None))
    return _Look(_judge(file, client, server, doi), stopped)


def _judge(file: _File, client: str | None, server: str, doi: str | None) -> _Finding:
    if client is None:
        return _Finding(
            file.id, file.sequencer, "error", "SHA256 metadata is required: it has no source-sha256", None, server, doi
        )
    if client == server:
        return _Finding(file.id, file.sequencer, "valid", None, client, server, doi)
    words = f"SHA256 mismatch: the client said {client}, the object has {server}"
    return _Finding(file.id, file.sequencer, "invalid", words, client, server, doi)


def _digest(chunks: Iterable[bytes], copy: Path | None) -> str:
    digest = hashlib.sha256()
    if copy is None:
        for chunk in chunks:
            digest.update(chunk)
    else:
        with copy.open("wb") as out:
            for chunk in chunks:
                digest.update(chunk)
                out.write(chunk)
    return digest.hexdigest()


def _doi(file: _File, copy: Path, h5ads: H5adPool) -> tuple[str | None, bool]:
    """A file that cannot be read for it is no less whole: the bytes are what the client promised, or not."""
    reading = h5ads.read(copy)
    if reading.problem:
        _log.warning("%s/%s has no DOI that can be read: %s", file.bucket, file.key, reading.problem)
    return reading.doi, reading.stopped
