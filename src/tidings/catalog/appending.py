"""The writing half of the durable path: the events of a call become rows of the change stream, in the call's own transaction.

`appended` is a part of the statement that changes the reference, so its row is locked when the numbers are drawn: events of a
reference are numbered in the order in which they happened, those of one call in the order in which they are given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, LiteralString

from tidings.catalog.model import Caller
from tidings.events.catalog import PREFIX, CatalogEvent, ReferenceDeleted

# Between events and their columns, in one text: JSON escapes control characters and names have none. PostgreSQL takes such a
# text apart in a quarter of the time that it takes to read it as JSON.
_ROW: LiteralString = "chr(30)"
_FIELD: LiteralString = "chr(31)"


def appended(source: LiteralString) -> LiteralString:
    """Appends the parameters' events if `source`, a relation of the statement, has a row: the reference as it was changed."""
    return f"""
    insert into changes (seq, id, project, bucket, bucket_id, key, event, etag, principal, source_ip, request_id, config, rules,
                         operation, metadata, request_at, trace, catalog)
    select nextval('change_seq'), e.id, %(repository)s, %(repository)s, '', e.key, e.event, e.etag, %(created_by)s,
           %(source_ip)s, %(request_id)s, 0, (select string_agg(rule::text, ',' order by rule) from catalog_subscriptions
                               where project = %(repository)s),
           %(operation)s, %(roles)s, %(request_at)s, %(trace)s, e.catalog
    from (select split_part(e.row, {_FIELD}, 1) as id, split_part(e.row, {_FIELD}, 2) as key,
                 split_part(e.row, {_FIELD}, 3) as event, nullif(split_part(e.row, {_FIELD}, 4), '') as etag,
                 split_part(e.row, {_FIELD}, 5) as catalog
          from {source} cross join string_to_table(%(events)s, {_ROW}) with ordinality as e(row, place) order by e.place) e
    """


def parameters(repository: str, operation: str, events: Sequence[CatalogEvent], caller: Caller) -> dict[str, Any]:
    """`operation` is the name of the call. Roles go into the column `metadata`, for filters: messages do not say them."""
    return {
        "repository": repository,
        "operation": operation,
        "created_by": caller.name,
        "roles": json.dumps(caller.roles) if caller.roles else None,
        "source_ip": caller.source_ip,
        "request_id": caller.request_id,
        "request_at": caller.request_at,
        "trace": caller.trace,
        "events": "\x1e".join([_row(event) for event in events]),
    }


def _row(event: CatalogEvent) -> str:
    about = event.about
    etag = "" if isinstance(event, ReferenceDeleted) else about.hash
    return "\x1f".join((event.id, about.full_name, PREFIX + event.type, etag, event.to_text()))
