"""Every queue with what is in it, for the operator."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import dict_row


def listed(connection: psycopg.Connection[Any], project: str | None = None) -> list[dict[str, Any]]:
    """All queues, or those of one project, by project and name. Goes through every message's entry in the index."""
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(
            """
            select q.project, q.name, m.visible, m.in_flight, m.delayed, m.oldest_seconds, q.dead_letter, q.max_receives,
                   exists (select from queues s where s.project = q.project and s.dead_letter = q.name) as holds_dead_letters,
                   q.tags
            from queues q cross join lateral (
                select (
                           select count(*) from queue_messages m where m.pile = q.pile and m.visible_at <= now()
                           and uuid_extract_timestamp(m.id) > now() - make_interval(secs => q.retention_seconds)
                       ) as visible,
                       count(*) filter (where m.receipt is not null) as in_flight,
                       count(*) filter (where m.receipt is null) as delayed,
                       (
                           select round(extract(epoch from now() - uuid_extract_timestamp(m.id)))::bigint
                           from queue_messages m where m.pile = q.pile
                           and uuid_extract_timestamp(m.id) > now() - make_interval(secs => q.retention_seconds)
                           order by m.id limit 1
                       ) as oldest_seconds
                from queue_messages m where m.pile = q.pile and m.visible_at > now()
                and uuid_extract_timestamp(m.id) > now() - make_interval(secs => q.retention_seconds)
            ) m
            where %(project)s::text is null or q.project = %(project)s
            order by q.project, q.name
            """,
            {"project": project},
        )
        return cursor.fetchall()
