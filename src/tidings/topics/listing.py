"""Every subscription with its lane, for the operator."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import dict_row


def listed(connection: psycopg.Connection[Any], project: str | None = None) -> list[dict[str, Any]]:
    """All subscriptions that were not ended, or those to topics of one project. Never their secrets."""
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(
            """
            select s.arn, s.topic, s.protocol, s.endpoint, s.raw, s.secret_count as secrets, s.lane,
                   coalesce(l.state, 'pending') as state, l.error
            from subscriptions s join topics t on t.arn = s.topic left join lanes l on l.id = s.lane
            where s.left_at is null and (s.lane is not null or s.token_until > now())
              and (%(project)s::text is null or t.project = %(project)s)
            order by s.topic, s.created_at
            """,
            {"project": project},
        )
        return cursor.fetchall()
