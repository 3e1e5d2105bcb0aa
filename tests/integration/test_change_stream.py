"""Windows and the reader on a real PostgreSQL: nothing is lost, nothing comes twice, and the same again whenever it is read."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import psycopg
import pytest

import writers
from tidings.changestream import reader, windows
from tidings.delivery import ownership
from tidings.errors import ForeignPosition
from tidings.events.positions import START, Position
from writers import Change, Writer, etags, position


@pytest.fixture
def writer(database_url: str) -> Iterator[Writer]:
    with writers.writer_to(database_url) as made:
        yield made


def stored_etags(database: psycopg.Connection) -> list[str]:
    return [row[0] for row in database.execute("select etag from changes where rules is not null order by seq")]


def stored_ids(database: psycopg.Connection) -> list[str]:
    return sorted(row[0] for row in database.execute("select id from changes where rules is not null"))


def ids(changes: list[Change]) -> list[str]:
    return sorted(change["id"] for change in changes)


class BySequence:
    """The reader that everybody writes first: what comes after the highest number seen."""

    def __init__(self, database: psycopg.Connection) -> None:
        self._database = database
        self._last = 0

    def read(self) -> list[str]:
        rows = self._database.execute("select seq, etag from changes where seq > %s order by seq", [self._last]).fetchall()
        self._last = max([self._last, *(row[0] for row in rows)])
        return [row[1] for row in rows]


class ByWindows:
    """Ours."""

    def __init__(self, database: psycopg.Connection, writer: Writer) -> None:
        self._database, self._writer = database, writer
        self._position = START

    def read(self) -> list[str]:
        start, self._position = self._position, windows.latest(self._database)
        return etags(self._writer.read(start, self._position))


def delivered_around_a_late_commit(writer: Writer, reader: BySequence | ByWindows) -> tuple[list[str], str]:
    """What the reader gets, before and after a transaction commits that drew its number first. And the late eTag."""
    with writer.held() as transaction:
        late = writer.run(writer.put_in(transaction, "late"))
        writer.put("a", "b")
        got = reader.read()
        assert late not in got
        writer.put("c")
        got += reader.read()
    writer.put("d")
    return got + reader.read() + reader.read(), late


def test_a_change_that_commits_late_is_delivered(database: psycopg.Connection, writer: Writer) -> None:
    got, late = delivered_around_a_late_commit(writer, ByWindows(database, writer))
    assert late in got
    assert sorted(got) == sorted(stored_etags(database))
    assert stored_etags(database)[0] == late, "it had the lowest number"


def test_a_reader_that_goes_by_numbers_loses_the_change_that_commits_late(database: psycopg.Connection, writer: Writer) -> None:
    got, late = delivered_around_a_late_commit(writer, BySequence(database))
    assert late not in got
    assert sorted([*got, late]) == sorted(stored_etags(database)), "and only that one"


def test_a_transaction_that_stays_open_over_many_windows_is_in_the_one_after_its_commit(
    database: psycopg.Connection, writer: Writer
) -> None:
    with writer.held() as first, writer.held() as second:
        early = [writer.run(writer.put_in(first, "x")), writer.run(writer.put_in(second, "y"))]
        for key in "abc":
            writer.put(key)
            windows.latest(database)
    writer.put("d")
    newest = windows.latest(database)
    assert newest.window == 4
    assert [change["window"] for change in writer.read() if change["etag"] in early] == [4, 4]
    assert ids(writer.read()) == stored_ids(database)


def test_a_transaction_that_is_rolled_back_leaves_nothing(database: psycopg.Connection, writer: Writer) -> None:
    with writer.held() as transaction:
        writer.run(writer.put_in(transaction, "never"))
        writer.put("a")
        windows.latest(database)
        writer.run(transaction.rollback())
    writer.put("b")
    assert etags(writer.read()) == stored_etags(database) == ["e2", "e3"]


def test_a_change_that_no_rule_wants_is_stored_and_cuts_no_window(database: psycopg.Connection, writer: Writer) -> None:
    database.execute("update bucket_eventing_configs set filter_prefix = 'in/'")
    writer.put("out")
    assert windows.latest(database) == START
    writer.put("in/x", "out")
    assert [change["key"] for change in writer.read()] == ["in/x"]
    assert windows.last(database).n == 1
    assert database.execute("select count(*) from changes").fetchone() == (3,)


def a_log_with_late_rows(database: psycopg.Connection, writer: Writer) -> None:
    """Three windows; the second and the third hold rows whose numbers are lower than those of the windows before."""
    with writer.held() as long, writer.held() as short:
        for key in "abc":
            writer.run(writer.put_in(long, f"long/{key}"))
            writer.run(writer.put_in(short, f"short/{key}"))
        writer.put(*(f"k{n % 7}" for n in range(40)))
        windows.latest(database)
        writer.put(*(f"k{n % 7}" for n in range(20)))
        writer.run(short.commit())
        windows.latest(database)
        writer.put(*(f"k{n % 7}" for n in range(20)))
        writer.run(writer.put_in(long, "long/a"))
    windows.latest(database)


def test_late_rows_have_lower_numbers_than_the_window_before(database: psycopg.Connection, writer: Writer) -> None:
    """What the tests below stand on."""
    a_log_with_late_rows(database, writer)
    first, second, third = windows.between(database, 1, 3)
    assert second.lo < first.hi
    assert third.lo < first.lo
    assert (first.n, second.n, third.n) == (40, 23, 24)


def by_window(changes: list[Change]) -> dict[int, list[Change]]:
    return {window: list(rows) for window, rows in itertools.groupby(changes, key=lambda change: change["window"])}


def test_windows_read_again_give_the_same_rows_while_writers_go_on(database: psycopg.Connection, writer: Writer) -> None:
    a_log_with_late_rows(database, writer)
    known = by_window(writer.read())
    with writer.writing([f"k{n}" for n in range(7)]), writer.held() as transaction:
        for turn in itertools.count():
            writer.run(writer.put_in(transaction, f"late/{turn % 20}"))
            again = by_window(writer.read())
            assert {window: again[window] for window in known} == known
            known = again
            if len(known) > 12:
                break
    last = by_window(writer.read())
    assert {window: last[window] for window in known} == known
    assert {w.id: w.n for w in windows.between(database, 1, len(last))} == {w: len(rows) for w, rows in last.items()}
    assert ids(writer.read()) == stored_ids(database)


def test_a_snapshot_that_is_taken_anew_for_each_reading_does_not_give_the_same_rows(
    database: psycopg.Connection, writer: Writer
) -> None:
    """Why windows are stored: without one, a range of numbers gains rows after it was read."""
    query = "select etag from changes where seq <= %s order by seq"
    with writer.held() as transaction:
        writer.run(writer.put_in(transaction, "late"))
        writer.put("a")
        before = database.execute(query, [2]).fetchall()
    assert database.execute(query, [2]).fetchall() != before


def test_parts_hold_whole_keys_in_order_and_together_everything(database: psycopg.Connection, writer: Writer) -> None:
    a_log_with_late_rows(database, writer)
    whole = writer.read()
    for parts in (1, 2, 3, 5):
        split = [writer.read(part=part, parts=parts) for part in range(parts)]
        assert sorted((row for rows in split for row in rows), key=position) == whole
        assert sum(bool(rows) for rows in split) >= min(parts, 2), "or nothing was split"
        owners: dict[str, set[int]] = {}
        for part, rows in enumerate(split):
            assert [position(row) for row in rows] == sorted(position(row) for row in rows)
            for row in rows:
                owners.setdefault(row["key"], set()).add(part)
        assert {len(owner) for owner in owners.values()} == {1}


def test_batches_of_any_size_take_the_log_apart_without_gap_or_overlap(database: psycopg.Connection, writer: Writer) -> None:
    a_log_with_late_rows(database, writer)
    whole = writer.read()
    assert len(whole) == 87
    for max_rows in (1, 7, 39, 40, 41, 63, 64, 86, 87, 100):
        start, batches = START, []
        while (step := windows.end_of(database, start, max_rows))[0] > start:
            end, count = step
            batches.append(writer.read(start, end))
            assert len(batches[-1]) == count
            start = end
        assert [row for batch in batches for row in batch] == whole
        assert all(len(batch) == max_rows for batch in batches[:-1]), "each but the last is full"
        assert windows.end_of(database, start, max_rows) == (start, 0)


def test_batches_of_any_size_take_the_log_apart_also_while_writers_go_on(database: psycopg.Connection, writer: Writer) -> None:
    start, sizes = START, itertools.cycle([1, 7, 2, 100, 3, 1000, 11])
    got: list[Change] = []
    with writer.writing(["a", "b", "c", "d"]):
        while len(got) < 400:
            windows.latest(database)
            end, count = windows.end_of(database, start, next(sizes))
            rows = writer.read(start, end)
            assert len(rows) == count
            got, start = got + rows, end
    got += writer.read(start)
    assert got == writer.read()
    assert ids(got) == stored_ids(database)


def test_only_the_changes_that_a_rule_of_the_lane_wanted_are_read_for_it(database: psycopg.Connection, writer: Writer) -> None:
    writer.put("a")
    (rule,) = database.execute("select rule from bucket_eventing_configs").fetchone() or ()
    database.execute("update changes set rules = %s where key = 'a'", [f"{rule}9,{rule}"])
    writer.put("b")
    database.execute("update changes set rules = %s where key = 'b'", [f"{rule}9,1{rule}"])
    end = windows.latest(database)
    for wanted, keys in (([rule], ["a"]), ([rule * 10 + 9], ["a", "b"]), ([0, rule], ["a"]), ([], [])):
        pieces = reader.slices(database, START, end, wanted)
        found = [row["key"] for batch in reader.read(writer.url, pieces, 0, 1) for row in batch.to_pylist()]
        assert found == keys


def test_two_cutters_make_each_window_once_and_nothing_is_lost_or_doubled(database: psycopg.Connection, writer: Writer) -> None:
    over = threading.Event()
    made: list[list[windows.Window]] = [[], []]
    together = threading.Barrier(2, timeout=120)

    def cutter(mine: list[windows.Window]) -> None:
        with psycopg.connect(writer.url, autocommit=True) as connection:
            while not over.is_set() and not together.broken:
                newest = windows.last(connection)
                try:
                    together.wait()
                except threading.BrokenBarrierError:
                    return
                cut = windows.cut(connection, newest)
                if cut:
                    mine.append(cut)

    threads = [threading.Thread(target=cutter, args=(mine,)) for mine in made]
    with writer.writing(["a", "b", "c", "d"], writers=3):
        for thread in threads:
            thread.start()
        while len(set(made[0]) & set(made[1])) < 10 and all(thread.is_alive() for thread in threads):
            over.wait(0.05)
        over.set()
        together.abort()
        for thread in threads:
            thread.join()
    newest = windows.latest(database).window
    assert len(set(made[0]) & set(made[1])) >= 10, "or they never met"
    stored = windows.between(database, 1, newest)
    assert [window.id for window in stored] == list(range(1, newest + 1))
    assert set(made[0]) | set(made[1]) <= set(stored), "what was given out is what is stored"
    assert ids(writer.read()) == stored_ids(database)


def test_the_second_of_two_cutters_gets_the_window_of_the_first(database: psycopg.Connection, writer: Writer) -> None:
    writer.put("a")
    first = windows.cut(database, windows.BEFORE_ALL)
    writer.put("b")
    assert windows.cut(database, windows.BEFORE_ALL) == first == windows.last(database)
    assert windows.latest(database) == Position(2, 2)


def test_an_idle_cut_burns_no_transaction_id_and_stores_nothing(database: psycopg.Connection, writer: Writer) -> None:
    assigned = "select pg_current_xact_id_if_assigned()::text"
    writer.put("a")
    newest = windows.cut(database, windows.BEFORE_ALL)
    assert newest is not None
    with database.transaction():
        for _ in range(20):
            assert windows.cut(database, newest) is None
        assert database.execute(assigned).fetchone() == (None,)
    writer.put("b")
    with database.transaction():
        assert windows.cut(database, newest) is not None
        assert database.execute(assigned).fetchone() != (None,), "a cut that stores something does need one"
    assert database.execute("select count(*) from windows").fetchone() == (2,)


def test_twenty_idle_cuts_leave_the_counter_of_the_server_where_it_was(database: psycopg.Connection, writer: Writer) -> None:
    def next_id() -> str:
        row = database.execute("select pg_snapshot_xmax(pg_current_snapshot())::text").fetchone()
        assert row is not None
        return str(row[0])

    writer.put("a")
    newest = windows.cut(database, windows.BEFORE_ALL)
    assert newest is not None
    unmoved = False
    for _ in range(5):  # autovacuum may take ids of its own at any moment
        before = next_id()
        for _ in range(20):
            assert windows.cut(database, newest) is None
        unmoved = unmoved or next_id() == before
    assert unmoved


def test_a_position_of_another_database_stops_and_rebase_goes_on(database: psycopg.Connection, writer: Writer) -> None:
    never = threading.Event()
    with ownership.connect(writer.url, "stream") as connection:
        first = ownership.acquire(connection, never)
    assert first is not None
    writer.put("a", "b")
    database.execute("update stream set win = 1, seq = 1, token = '7000000000000000000/00000001'")
    windows.latest(database)
    with (
        ownership.connect(writer.url, "stream") as connection,
        pytest.raises(ForeignPosition, match=r"7000000000000000000/00000001.*--rebase"),
    ):
        ownership.acquire(connection, never)
    assert database.execute("select epoch, win, seq from stream").fetchone() == (first.epoch, 1, 1), "nothing moved"
    with ownership.connect(writer.url, "stream") as connection:
        owner = ownership.acquire(connection, never, rebase=True)
    assert owner == ownership.Owner(first.epoch + 1, Position(1, 1))
    assert etags(writer.read(owner.position)) == ["e2"]
    with ownership.connect(writer.url, "stream") as connection:
        again = ownership.acquire(connection, never)
    assert again == ownership.Owner(first.epoch + 2, Position(1, 1))


def test_a_window_says_on_which_database_it_was_cut(database: psycopg.Connection, writer: Writer) -> None:
    writer.put("a")
    windows.latest(database)
    assert database.execute("select token from windows").fetchone() == (windows.token(database),)
    assert windows.check_token(database, None) == windows.token(database)
