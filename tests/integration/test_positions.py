"""The changes between two positions, as one condition: the same that the reader finds window by window."""

from __future__ import annotations

import random
from itertools import combinations

import psycopg

import writers
from tidings.changestream import positions, reader, windows
from tidings.events.positions import START, Position


def test_the_condition_finds_what_the_reader_finds_between_any_two_positions(
    database_url: str, database: psycopg.Connection
) -> None:
    with writers.writer_to(database_url) as writer:
        places = {START}
        for number in range(4):
            with writer.held() as late:  # it draws its seq before the others and commits after them
                writer.run(writer.put_in(late, f"late-{number}"))
                writer.put("a", "b")
                places.add(windows.latest(database))
            writer.put("c")
            places.add(windows.latest(database))
        seqs = [row[0] for row in database.execute("select seq from changes order by seq").fetchall()]
        inside = {Position(place.window, seq) for place in places for seq in seqs if place.window}
        every = list(combinations(sorted(places | inside), 2))
        for start, end in random.Random(20261115).sample(every, 300):
            by_window = [piece.condition for piece in reader.slices(database, start, end)]
            expected = {
                seq for each in by_window for (seq,) in database.execute(f"select seq from changes where {each}".encode())
            }
            where = positions.between(database, start, end)
            found = [seq for (seq,) in database.execute(f"select seq from changes where {where}".encode())]
            assert sorted(found) == sorted(expected), (start, end)
        assert len(seqs) == 16
