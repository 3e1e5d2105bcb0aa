"""The parts that every writing statement of the store is made of.

The head row of a key is the lock for everything that happens to the key. `seq` is drawn from the RETURNING of the part
that took this lock, or in a later statement of the same transaction, so the changes of a key are numbered in the order in
which they happened; drawn anywhere else they are not.

A statement reads everything but the row it locks as it was when the statement began. So one statement is enough only where
nothing but the head row decides. Three facts make that the common case:

- a key has at most one version with the id `null`, so a head that is the null version can be replaced in place;
- a version with an id of its own is added whatever is there;
- `ordinal` counts a key's versions, so a head with ordinal 1 has none behind it.

And the rules that it read must not be older than those of whoever wrote the head: otherwise a rule would hear of the write
before this one, and not of this one.

Where they do not help, the statement does nothing and says so, and the caller takes the lock first and asks again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, LiteralString

from tidings.events import keys, names
from tidings.events.changes import UNREAD
from tidings.rules.table import MATCHED, MATCHED_IN_CACHE
from tidings.store.model import Content, Origin, Place, Segment

COLUMNS: LiteralString = (
    "bucket_id, key, version_id, ordinal, delete_marker, size, etag, content_type, metadata, tags, config, body, segments,"
    " modified_at"
)
OLD: LiteralString = ", ".join([f"old.{name} as old_{name}" for name in COLUMNS.split(", ")])
_KEPT: LiteralString = ", ".join([f"h.old_{name}" for name in COLUMNS.split(", ")])

BUCKET: LiteralString = f"""
    select b.id, b.config, b.versioning, {MATCHED} as rules
    from bucket_metainfos b join projects p on p.id = b.project_id
    where p.public_id = %(project)s and b.name = %(bucket)s
"""

VERSIONING: LiteralString = """
    select b.versioning from bucket_metainfos b join projects p on p.id = b.project_id
    where p.public_id = %(project)s and b.name = %(bucket)s
"""

LOCK: LiteralString = """
    select version_id, etag, delete_marker from heads
    where key = %(key)s and bucket_id = (
        select b.id from bucket_metainfos b join projects p on p.id = b.project_id
        where p.public_id = %(project)s and b.name = %(bucket)s)
    for update
"""
"""Takes the key's lock, if there is a head to lock."""

IN_ONE_STATEMENT: LiteralString = (
    "(excluded.version_id <> 'null' or heads.version_id = 'null') and excluded.config >= heads.config"
)
"""The guard for a statement that does not hold the lock, or could not take it because there was no head yet."""


def head(guard: LiteralString, wanted: LiteralString = "true") -> LiteralString:
    """Makes the parameters' content the key's newest version, where `wanted` holds of the bucket and `guard` of the head."""
    return f"""
    insert into heads (bucket_id, key, version_id, delete_marker, size, etag, content_type, metadata, tags, config, body,
                       segments)
    select b.id, %(key)s, case b.versioning when 'enabled' then uuidv7()::text else 'null' end, %(delete_marker)s,
           %(size)s, %(etag)s, %(content_type)s, %(metadata)s::jsonb, %(tags)s::jsonb, b.config, %(body)s, %(segments)s::jsonb
    from b where {wanted} and (%(commit_before)s::timestamptz is null or clock_timestamp() < %(commit_before)s)
    on conflict (bucket_id, key) do update
    set version_id = excluded.version_id, delete_marker = excluded.delete_marker, size = excluded.size,
        etag = excluded.etag, content_type = excluded.content_type, metadata = excluded.metadata, tags = excluded.tags,
        config = excluded.config, body = excluded.body, segments = excluded.segments,
        ordinal = heads.ordinal + case when excluded.version_id = 'null' and heads.version_id = 'null' then 0 else 1 end,
        modified_at = clock_timestamp()  -- not the excluded one: that is from before the wait for the lock
    where {guard}
    returning new.version_id, new.modified_at, new.size, new.etag, {OLD}
"""


KEEP: LiteralString = f"""
    insert into versions ({COLUMNS})
    select {_KEPT} from h where old_version_id is not null and not (old_version_id = 'null' and version_id = 'null')
"""
"""Keeps what was the head in `h`, unless it was replaced in place."""

REMOVE_NULL: LiteralString = """
    delete from versions v using b, h
    where v.bucket_id = b.id and v.key = %(key)s and v.version_id = 'null' and h.version_id = 'null'
    returning v.delete_marker, v.size, v.content_type, v.metadata, v.tags, v.segments
"""
"""Under the lock: the null version that is no longer the newest goes when a new one comes."""


def change(source: LiteralString) -> LiteralString:
    """Appends the change that `source` tells of, a relation with everything that is not a parameter or the bucket's."""
    return f"""
    insert into changes (seq, project, bucket, bucket_id, key, encoded, event, size, etag, principal, source_ip, request_id,
                         config, rules, operation, version_id, versioning, old_size, content_type, metadata, tags,
                         copy_source, request_at, replaced, trace)
    select nextval('change_seq'), %(project)s, %(bucket)s, b.id, %(key)s, %(encoded)s, x.event, x.size, x.etag, %(principal)s,
           %(source_ip)s, %(request_id)s, b.config, b.rules, %(operation)s,
           case when b.versioning <> 'unversioned' then x.version_id end, b.versioning, x.old_size, nullif(x.content_type, ''),
           x.metadata, x.tags, %(copy_source)s, %(request_at)s, x.replaced, %(trace)s
    from b, ({source}) x where %(recorded)s
    returning coalesce(rules, '') as rules
"""


EITHER: LiteralString = "case b.versioning when 'unversioned' then %(wanted)s::text[] else %(wanted_marker)s::text[] end"
"""Which event a delete is depends on the bucket."""


def of_either(text: LiteralString) -> LiteralString:
    """The rules that want a delete, or the marker that is made in its place."""
    return text.replace("%(wanted)s::text[]", EITHER)


_MATCHED = {"cache": MATCHED_IN_CACHE, "unread": f"'{UNREAD}'"}


@cache
def _looked_up(statement: LiteralString, source: str) -> LiteralString:
    if source == "database":
        return statement
    instead = _MATCHED[source]
    return statement.replace(of_either(MATCHED), of_either(instead)).replace(MATCHED, instead)


def looked_up(statement: LiteralString, parameters: Mapping[str, Any]) -> LiteralString:
    """A statement that looks for the rules where its parameters say."""
    return _looked_up(statement, parameters["source"])


# As PostgreSQL writes an array: adapting a Python list for every request costs more than all the other parameters.
_WANTED = {event: f"{{{','.join(names.wanted_by(event))}}}" for event in names.NAMES}


def parameters(place: Place, event: str, operation: str, origin: Origin, copy_source: str | None = None) -> dict[str, Any]:
    eventing, encoded = origin.eventing, keys.encoded_if_different(place.key)
    event = eventing.profile.event(event)
    return {
        "project": place.project,
        "bucket": place.bucket,
        "key": place.key,
        "encoded": encoded,
        "form": None if eventing.profile.literal_filters else encoded,
        "event": event,
        "wanted": _WANTED[event],
        "operation": operation,
        "copy_source": copy_source,
        "absent": False,
        "principal": origin.principal,
        "source_ip": origin.source_ip,
        "request_id": origin.request_id,
        "request_at": origin.request_at,
        "trace": origin.trace,
        "recorded": eventing.recorded,
        "source": eventing.source,
        "cached": eventing.cached,
    }


def content(of: Content) -> dict[str, Any]:
    return {
        "delete_marker": False,
        "size": of.size,
        "etag": of.etag,
        "content_type": of.content_type,
        "metadata": as_json(of.metadata),
        "tags": as_json(of.tags),
        "body": of.body,
        "segments": None if of.segments is None else json.dumps([list(each) for each in of.segments]),
        "commit_before": of.commit_before,
    }


MARKER: Mapping[str, Any] = {
    "delete_marker": True,
    "size": 0,
    "etag": "",
    "content_type": "",
    "metadata": "{}",
    "tags": "{}",
    "body": None,
    "segments": None,
    "commit_before": None,
}


def as_json(values: Mapping[str, str]) -> str:
    return json.dumps(values, ensure_ascii=False) if values else "{}"


def kept(rules: str | None) -> tuple[str, ...]:
    """What a statement that appends one change says of the rules: nothing where it appended none."""
    return () if rules is None else (rules,)


def names_of(segments: Sequence[Sequence[Any]] | None) -> list[str]:
    """The blobs that a column `segments` names."""
    return [Segment(*each).name for each in segments or ()]
