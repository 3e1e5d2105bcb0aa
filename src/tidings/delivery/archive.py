"""Changes that a lane still needs when their retention is over: written to Parquet by Spark before their partition is dropped.

A range is listed with the dead letters, and can still be sent: its changes are read from the files, and go through the same
pipeline as those in the database. Replays and backfills are left out: what they still need stays in the log until they end.
"""

from __future__ import annotations

import logging
import posixpath
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from psycopg import Connection, sql
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from tidings.changestream import reader, retention, windows
from tidings.delivery import dead_letters, lanes, lookup, pipeline
from tidings.delivery.deliver import Terms
from tidings.delivery.reports import Report
from tidings.errors import OperatorError
from tidings.events.positions import Position
from tidings.events.schema import CHANGE
from tidings.settings import Settings

log = logging.getLogger(__name__)

_LONG_SECONDS = 86_400.0
"""A range is sent as a whole, however long that takes."""

_LISTED = """
select g.id, g.lane, l.destination, g.from_win, g.from_seq, g.to_win, g.to_seq, g.n, g.place, g.state, g.at
from lane_log g join lanes l on l.id = g.lane
where g.what = 'archived' and (%(lane)s::bigint is null or g.lane = %(lane)s) and (g.state = 'kept' or %(ended)s)
order by g.id
"""

# The first window that sees everything in a partition. It was cut when the partition's time was over, or later.
_COVERED = """
select w.id, w.hi from windows w
where w.cut_at >= {upto} and not exists (
    select from {partition} c
    where c.rules is not null and c.xid >= pg_snapshot_xmin(w.snapshot) and not pg_visible_in_snapshot(c.xid, w.snapshot))
order by w.id limit 1
"""

_MOVE = """
with moved as (update lanes set win = %(to_win)s, seq = %(to_seq)s
               where id = %(lane)s and state in ('behind', 'paused') and (win, seq) = (%(from_win)s, %(from_seq)s)
                 and exists (select from stream where name = 'main' and epoch = %(epoch)s for share) returning id)
insert into lane_log (lane, what, from_win, from_seq, to_win, to_seq, n, place, state)
select id, 'archived', %(from_win)s, %(from_seq)s, %(to_win)s, %(to_seq)s, %(n)s, %(place)s,
       case when %(n)s > 0 then 'kept' else 'done' end from moved returning id
"""


def archive_expired(
    connection: Connection, spark: SparkSession, settings: Settings, epoch: int, now: datetime | None = None
) -> list[int]:
    """Write what lanes still need of partitions whose time is over, and let the lanes go on after it; returns the lanes.

    Not what a replay or a backfill needs: moved past its end it would be over, and a range of it could not be sent, for no
    route is left.
    """
    now, folder = now or datetime.now(UTC), settings.delivery.archive
    done = []
    for partition, upto in retention.expired(connection, settings.changestream, now):
        query = sql.SQL(_COVERED).format(partition=sql.Identifier(partition), upto=sql.Literal(upto))
        row = connection.execute(query).fetchone()
        end = min(Position(*row) if row else windows.last(connection).end, _stream(connection))
        standing = lanes.standing(connection)
        for lane in standing.in_state("behind") + standing.in_state("paused"):
            owed = lane.replay is None and not lane.backfill and lane.cursor < end
            if owed and _archive(connection, spark, folder, epoch, lane, end, now):
                done.append(lane.id)
    return done


def _stream(connection: Connection) -> Position:
    row = connection.execute("select win, seq from stream where name = 'main'").fetchone()
    assert row is not None
    return Position(*row)


def _archive(
    connection: Connection, spark: SparkSession, folder: str, epoch: int, lane: lanes.Lane, end: Position, now: datetime
) -> bool:
    pieces = reader.slices(connection, lane.cursor, end, lanes.rules_of(connection, [lane.id]))
    place = posixpath.join(folder, f"lane-{lane.id}", f"{now:%Y%m%dT%H%M%S}-{lane.cursor.window}-{lane.cursor.seq}")
    pipeline.plain_changes(spark, pieces).write.mode("overwrite").parquet(place)
    count = spark.read.schema(CHANGE).parquet(place).count()
    values = {
        "lane": lane.id,
        "epoch": epoch,
        "from_win": lane.cursor.window,
        "from_seq": lane.cursor.seq,
        "to_win": end.window,
        "to_seq": end.seq,
        "n": count,
        "place": place,
    }
    moved = connection.execute(_MOVE, values).fetchone()
    if moved is None:
        return False
    fields = {"lane": lane.id, "from": lane.cursor, "to": end, "changes": count}
    words = "lane %s is behind for longer than changes are kept: %s changes were archived as range %s, which can still be sent"
    log.error(words, lane.id, count, moved[0], extra=fields)
    return True


def send(connection: Connection, spark: SparkSession, settings: Settings, id_: int) -> Report:
    """Send everything in a range again, over its lane's destination; what was done. It is `sent` only if all of it was."""
    found = sendable(connection, id_)
    start = Position(*map(int, found["from"].split("/")))
    seconds = settings.delivery.publish_timeout_seconds
    terms = Terms(_LONG_SECONDS, seconds, starts={found["lane"]: start}, replays=frozenset({found["lane"]}))
    todo = pipeline.Round((), lanes.standing(connection).moment, terms)
    changes = spark.read.schema(CHANGE).parquet(found["place"])
    formats = lookup.formats_in_use(connection, settings)
    reports = pipeline.send_changes(spark, settings, changes, formats, todo)
    report = next((each for each in reports if each.lane == found["lane"]), Report(found["lane"], 0))
    note(connection, found, report)
    return report


def sendable(connection: Connection, id_: int) -> dict[str, Any]:
    """A range that there is a way for."""
    found = find(connection, id_)
    if not lanes.rules_of(connection, [found["lane"]]):
        raise OperatorError(
            f"No rule leads to lane {found['lane']} ({found['destination']}) any more: nothing of range {id_} can be sent. "
            f"Set a rule to that destination again, or give the range up: `tidings dead-letters discard --range {id_}`."
        )
    return found


def note(connection: Connection, range_: dict[str, Any], report: Report) -> None:
    """Keep what died. The range is `sent` if nothing was left, neither by its destination nor by rules that have changed."""
    dead_letters.bury(connection, report.lane, report.dead)
    if report.cursor is None and not unwanted(range_, report):
        end(connection, range_["id"], "sent")


def unwanted(range_: dict[str, Any], report: Report) -> int:
    """How many of a range's changes made no message, at least: a change that two rules of a lane want makes two."""
    return max(0, int(range_["n"]) - report.sent - len(report.dead))


def listed(connection: Connection, lane: int | None = None, ended: bool = False) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_LISTED, {"lane": lane, "ended": ended}).fetchall()
    for row in rows:
        row["from"] = str(Position(row.pop("from_win"), row.pop("from_seq")))
        row["to"] = str(Position(row.pop("to_win"), row.pop("to_seq")))
    return rows


def find(connection: Connection, id_: int) -> dict[str, Any]:
    found = next((row for row in listed(connection, ended=True) if row["id"] == id_), None)
    if found is None:
        raise OperatorError(f"There is no archived range {id_}: `tidings dead-letters list` shows them.")
    if found["state"] == "discarded":
        raise OperatorError(f"Range {id_} was discarded.")
    return found


def end(connection: Connection, id_: int, state: str) -> None:
    find(connection, id_)
    connection.execute("update lane_log set state = %s where id = %s and what = 'archived'", [state, id_])


def discard(connection: Connection, id_: int) -> str | None:
    """Give a range up, with its files. Returns their place if that is not a folder of this machine: then they are still there.

    No Spark is started for it: that would take longer than telling who has the keys of the place.
    """
    place = str(find(connection, id_)["place"])
    end(connection, id_, "discarded")
    folder = _folder(place)
    if folder is None or not folder.is_dir():
        return place
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise OperatorError(f"Range {id_} is kept, for its files cannot be removed: {error}.") from None
    return None


def _folder(place: str) -> Path | None:
    """As Hadoop reads it: what follows `file:` is the path as it is, nothing in it stands for something else."""
    if place.startswith("file:"):
        return Path("/" + place.removeprefix("file:").lstrip("/"))
    return None if ":" in place.partition("/")[0] else Path(place)
