"""What a worker makes of an Arrow batch: the messages of each lane that are owed, in order, and nothing else."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from tidings.delivery import shares
from tidings.delivery.deliver import Terms, by_lane
from tidings.delivery.render import MESSAGE
from tidings.delivery.sending import DELAYS, LaneResult
from tidings.delivery.unanswered import Unanswered
from tidings.events.messages import Message
from tidings.events.positions import Position

Row = dict[str, Any]

_LANES = st.sampled_from([None, 1, 1, 1, 2, 3])


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Rows as a part of a round has them: positions rise, lanes are mixed; a few have no body, some say more."""
    made: list[Row] = []
    for number, lane in enumerate(draw(st.lists(_LANES, max_size=30))):
        body = None if lane and draw(st.integers(0, 40)) == 0 else f"schön {number}"
        more = draw(st.sampled_from([None, None, "{}", '{"ce-type":"x"}'] if lane else [None, '[7,2,"Index"]']))
        made.append(
            {
                "lane": lane,
                "slot": draw(st.integers(-(2**63), 2**63 - 1)),
                "window": 1 + number // 10,
                "seq": 100 + number,
                "at": 1_700_000_000_000_000 + number,
                "id": f"change-{number}.7",
                "body": body if lane else "project/bucket",
                "key": draw(st.sampled_from([None, "käse"])),
                "attributes": more,
                "project": draw(st.sampled_from(["p", "q"])),
            }
        )
    return made


_STARTS = st.builds(Position, st.integers(1, 3), st.integers(95, 130))


@settings(deadline=None)
@given(
    *(rows(), _STARTS, st.dictionaries(st.sampled_from([2, 3]), _STARTS), st.sets(st.just(2)), st.sets(st.just(3))),
    st.dictionaries(st.sampled_from([1, 3]), _STARTS),
)
def test_every_lane_gets_what_it_is_owed_and_nothing_else(
    given_rows: list[Row],
    everyone: Position,
    starts: dict[int, Position],
    skipped: set[int],
    replays: set[int],
    ends: dict[int, Position],
) -> None:
    terms = Terms(1, 1, everyone, starts, frozenset(skipped), replays=frozenset(replays), ends=ends)
    assert Terms.from_list(json.loads(json.dumps(terms.to_list()))) == terms
    results: dict[int, LaneResult] = {}
    orphans: Counter[str] = Counter()
    batch = pa.RecordBatch.from_pylist(given_rows, schema=to_arrow_schema(MESSAGE))
    unanswered: list[Unanswered] = []
    found = by_lane(batch, terms, results, orphans, unanswered)
    rendered: Counter[str] = Counter()
    assert by_lane(shares.owed(batch, terms), terms, {}, rendered, []) == found, "what is not rendered is not owed"
    assert rendered == orphans

    without_lane = [row["attributes"] for row in given_rows if row["lane"] is None]
    assert orphans["project/bucket"] == without_lane.count(None)
    assert unanswered == [Unanswered(7, 2, "Index")] * (len(without_lane) - without_lane.count(None))
    for lane in (1, 2, 3):
        start = None if lane in skipped else starts.get(lane, everyone)
        end = ends.get(lane, Position(9, 999))
        owed = [row for row in given_rows if row["lane"] == lane and start and start < (row["window"], row["seq"]) <= end]
        if (unready := next((row for row in owed if row["body"] is None), None)) is not None:
            at = Position(unready["window"], unready["seq"])
            owed = owed[: owed.index(unready)]
            assert results[lane].unready == at, "nothing is sent from there on"
            assert results[lane].undelivered == (None if owed else at), "what is before it is sent first"
            results[lane].end()
            assert (results[lane].undelivered, results[lane].late) == (at, True)
        messages = [message(row, replay=lane in replays) for row in owed]
        assert (found[lane].messages if lane in found else []) == messages
        if owed:
            pending = found[lane]
            assert [pending.position(i) for i in range(len(owed))] == [Position(row["window"], row["seq"]) for row in owed]
            assert (pending.slots, pending.written) == ([row["slot"] for row in owed], [row["at"] for row in owed])


def message(row: Row, *, replay: bool) -> Message:
    named = {"id": row["id"], "sequencer": f"{row['seq']:016X}", "tidings-project": row["project"]}
    attributes = {**named, **json.loads(row["attributes"] or "{}")}
    if replay:
        attributes["replay"] = "true"
    key = None if row["key"] is None else row["key"].encode()
    return Message(row["id"], row["body"].encode(), attributes, key, (row["slot"] % 2**64).to_bytes(8, "big").hex())


def test_a_lane_that_has_stopped_gets_nothing_of_a_later_batch() -> None:
    row = {"lane": 1, "slot": 1, "window": 1, "seq": 9, "at": 0, "id": "a.1", "body": "b", "key": None}
    batch = pa.RecordBatch.from_pylist([row], schema=to_arrow_schema(MESSAGE))
    stopped = {1: LaneResult(undelivered=Position(1, 5))}
    assert by_lane(batch, Terms(1, 1, Position(0, 0)), stopped, Counter(), []) == {}


_CLEAR_OF_BOUNDS = st.floats(-1, 100_000).filter(lambda delay: all(abs(delay - upto) > 1e-3 for upto in DELAYS))


@settings(deadline=None)
@given(st.lists(_CLEAR_OF_BOUNDS, max_size=50))
def test_delays_are_counted_in_their_buckets(seconds: list[float]) -> None:
    now = time.time()
    written = [round((now - delay) * 1e6) for delay in seconds]
    result = LaneResult()
    result.add([3] * len(written), written, now)
    delays = [now - at / 1e6 for at in written]
    counts = [0] * (len(DELAYS) + 1)
    for delay in delays:
        counts[sum(delay > upto for upto in DELAYS)] += 1
    assert (result.delays, result.sent, result.bytes) == (counts, len(seconds), 3 * len(seconds))
    assert abs(result.delay - sum(delays)) < 1e-3 * (1 + len(seconds))
