"""Every rule of every tenant, for the operator, and where a bucket is. Projects by their names: private ids stay inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from psycopg import Connection

from tidings.errors import OperatorError

_ONLY = "(%(project)s::text is null or %(project)s in (p.name, p.public_id))"

_LISTED = f"""
select p.name, c.bucket_name, c.config_id, coalesce(l.destination, c.topic_name), c.events,
       coalesce(c.filter_prefix, ''), coalesce(c.filter_suffix, ''), l.id, coalesce(l.state, 'fans out')
from bucket_eventing_configs c
join projects p on p.id = c.project_id
left join lanes l on l.id = c.lane
where {_ONLY} and (%(bucket)s::text is null or c.bucket_name = %(bucket)s)
order by p.name, c.bucket_name, c.rule
"""

_FOUND = f"""
select p.name, b.name, b.id
from projects p left join bucket_metainfos b on b.project_id = p.id and b.name = %(bucket)s
where {_ONLY}
order by b.id is null
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """A rule with its place, and the state of the lane that it sends to."""

    project: str
    bucket: str
    id: str
    destination: str
    events: list[str]
    prefix: str
    suffix: str
    lane: int | None
    """None for a topic of ours: each of its subscriptions has one."""
    state: str


class Bucket(NamedTuple):
    project: str
    name: str
    id: str


def listed(connection: Connection, project: str | None = None, bucket: str | None = None) -> list[Listed]:
    """The rules there are, or those of one project, one bucket, or one bucket of one project; oldest first in each bucket."""
    _found(connection, project, bucket)
    rows = connection.execute(_LISTED, {"project": project, "bucket": bucket}).fetchall()
    return [Listed(*row) for row in rows]


def find_bucket(connection: Connection, project: str, bucket: str) -> Bucket:
    """A project's bucket; the project by its name or its public id."""
    found = _found(connection, project, bucket)
    assert found is not None
    return found


def _found(connection: Connection, project: str | None, bucket: str | None) -> Bucket | None:
    """A bucket that is meant, if one is named. What is not there is said: an empty list would look like an answer."""
    row = connection.execute(_FOUND, {"project": project, "bucket": bucket}).fetchone()
    if row is None and project is not None:
        raise OperatorError(f"There is no project {project!r}: check its name.")
    if bucket is None:
        return None
    if row is None or row[2] is None:
        place = "" if project is None else f" in project {project!r}"
        raise OperatorError(f"There is no bucket {bucket!r}{place}: check its name, or name another project.")
    return Bucket(*row)
