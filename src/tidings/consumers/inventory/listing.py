"""Looking into the inventory."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

_FIELDS: LiteralString = (
    "bucket, bucket_id, key, version_id, is_latest, delete_marker, size, etag, content_type, event_type, sequencer, event_at"
)


def versions(
    connection: psycopg.Connection[Any],
    bucket: str,
    prefix: str = "",
    current: bool = False,
    most: int | None = None,
) -> list[dict[str, Any]]:
    """As ListObjectVersions has them: keys in order, of each the newest version first. Or `current` objects alone."""
    only: LiteralString = "and is_latest and not delete_marker" if current else ""
    return _rows(
        connection,
        f"select {_FIELDS} from inventory_versions where bucket = %s and starts_with(key, %s) {only}"
        " order by bucket_id, key, sequencer desc limit %s",
        [bucket, prefix, most],
    )


def history(connection: psycopg.Connection[Any], bucket: str, key: str) -> list[dict[str, Any]]:
    """Everything that is known of a key, what was deleted included, the latest word first."""
    return _rows(
        connection,
        "select i.bucket, i.bucket_id, i.key, i.version_id, coalesce(v.is_latest, false) as is_latest, i.delete_marker,"
        " i.tombstone, i.size, i.etag, i.content_type, i.event_type, i.sequencer, i.event_at"
        " from inventory i left join inventory_versions v using (bucket, bucket_id, key, version_id)"
        " where i.bucket = %s and i.key = %s order by i.bucket_id, i.sequencer desc",
        [bucket, key],
    )


def positions(connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    """How far each partition was read."""
    return _rows(
        connection,
        "select cluster, topic, part as partition, next_offset from inventory_offsets order by cluster, topic, part",
        [],
    )


def rejects(connection: psycopg.Connection[Any], most: int) -> list[dict[str, Any]]:
    """Messages that could not be used, the newest first."""
    return _rows(
        connection,
        "select cluster, topic, part as partition, at_offset as \"offset\", reason, encode(body, 'escape') as body, rejected_at"
        " from inventory_rejects order by id desc limit %s",
        [most],
    )


def _rows(connection: psycopg.Connection[Any], statement: LiteralString, parameters: list[Any]) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, parameters).fetchall()
