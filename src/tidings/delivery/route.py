"""Which rules want a change, and which lanes it goes to.

In two steps. Where changes are read, each is multiplied by the rules that matched when it was written and by the lanes of
each: rules are data here, so that a new rule needs no new plan. Then Spark asks again whether the rule as it is now wants the
change (seed 000, the secondary filter).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from tidings.cel.types import types_of
from tidings.delivery import cel_columns
from tidings.events import catalog, names
from tidings.events.schema import CHANGE, stored
from tidings.rules import columns

ROUTE = StructType(
    [
        StructField("rule", StringType()),
        StructField("lane", LongType()),
        StructField("format", StringType()),
        StructField("config_json", StringType()),
        StructField("events", ArrayType(StringType())),
        StructField("prefix", StringType()),
        StructField("suffix", StringType()),
        StructField("filter", StringType()),
    ]
)
"""Where a change goes: the rule as it is now, and one of its lanes. `rule` is the number that the change has."""


_ROUTE = to_arrow_schema(ROUTE)


def routed(details: Collection[str]) -> StructType:
    """A change with where it goes, and with these details."""
    return StructType([CHANGE["window"], *(CHANGE[name] for name in stored(details) if name != "rules"), *ROUTE])


class Routes:
    """Routes by the number of their rule, as far as they are known."""

    def __init__(self) -> None:
        self._places: dict[str, list[int | None]] = {}
        self._rows: list[dict[str, Any]] = []
        self._wanted: dict[tuple[str, int], bool] = {}
        self._batch = pa.RecordBatch.from_pylist([], schema=_ROUTE)

    def unknown(self, numbers: Iterable[str]) -> list[str]:
        return [number for number in numbers if number not in self._places]

    def learn(self, asked: Iterable[str], rows: Sequence[dict[str, Any]]) -> None:
        """`rows` is all there is about the numbers that were asked for. A rule without a lane has one row without one.

        A number of which nothing is known is that of a rule that was deleted: its changes keep a row, without a lane.
        """
        found: dict[str, list[int | None]] = {}
        for row in rows:
            places = found.setdefault(row["rule"], [])
            if row["lane"] is not None:
                places.append(len(self._rows))
                self._rows.append(row)
        self._places |= {number: found.get(number, [None]) for number in asked}
        self._batch = pa.RecordBatch.from_pylist(self._rows, schema=_ROUTE)

    def places(self, numbers: Sequence[str]) -> list[list[int | None]]:
        return [self._places[number] for number in numbers]

    def may_want(self, event: str, place: int | None) -> bool:
        """False where a subscription to a catalog is certain not to want events of this name, whatever else they say."""
        if place is None or not event.startswith(catalog.PREFIX):  # other changes name the rules that matched
            return True
        if (known := self._wanted.get((event, place))) is None:
            row = self._rows[place]
            types = types_of(row["filter"]) if row["filter"] else None
            asked = not set(names.wanted_by(event)).isdisjoint(row["events"] or ())
            known = asked and (types is None or event.removeprefix(catalog.PREFIX) in types)
            self._wanted[event, place] = known
        return known

    def take(self, picked: pa.Array) -> list[pa.Array]:
        return [column.take(picked) for column in self._batch.columns]


def numbers_in(batch: pa.RecordBatch) -> list[str]:
    """The numbers of all rules that the changes of a batch name."""
    named = pc.unique(batch.column("rules")).to_pylist()
    return list(dict.fromkeys(number for rules in named for number in rules.split(",")))


def expand(batch: pa.RecordBatch, routes: Routes) -> pa.RecordBatch:
    """One row for each change and lane, in the order of the changes; without those that are certain to be no match."""
    lists = pc.split_pattern(batch.column("rules"), ",")
    parents, numbers = pc.list_parent_indices(lists), pc.list_flatten(lists)
    encoded = numbers.dictionary_encode()
    places = routes.places(encoded.dictionary.to_pylist())
    if all(len(each) == 1 for each in places):
        picked = pa.array([each[0] for each in places], pa.int32()).take(encoded.indices)
    else:
        several = pa.array(places, pa.list_(pa.int32())).take(encoded.indices)
        of_number = pc.list_parent_indices(several)
        parents, numbers, picked = parents.take(of_number), numbers.take(of_number), pc.list_flatten(several)
    if (wanted := _may_be_wanted(batch, routes, parents, picked)) is not None:
        parents, numbers, picked = parents.filter(wanted), numbers.filter(wanted), picked.filter(wanted)
    one_each = len(parents) == batch.num_rows and parents.equals(pa.array(range(batch.num_rows), parents.type))
    kept = [
        column if one_each else column.take(parents)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name != "rules"
    ]
    named = routes.take(picked)
    if picked.null_count:  # their number is all that is left of rules that were deleted
        named[0] = pc.coalesce(named[0], numbers)
    own = [name for name in batch.schema.names if name != "rules"]
    return pa.RecordBatch.from_arrays([*kept, *named], names=[*own, *_ROUTE.names])


def _may_be_wanted(batch: pa.RecordBatch, routes: Routes, parents: pa.Array, picked: pa.Array) -> pa.Array | None:
    """Which rows are not certain to be no match; None for all. A catalog's changes name every subscription of their project."""
    events = batch.column("event").dictionary_encode()
    named = events.dictionary.to_pylist()
    if not any(name.startswith(catalog.PREFIX) for name in named):
        return None
    places = picked.dictionary_encode("encode")
    there = places.dictionary.to_pylist()
    answers = [routes.may_want(event, place) for event in named for place in there]
    if all(answers):
        return None
    cells = pc.add(pc.multiply(events.indices.take(parents), len(there)), places.indices)
    return pa.array(answers).take(cells).fill_null(True)


def route(changes: DataFrame, literal: bool = False, filters: Sequence[str] = ()) -> DataFrame:
    """Drop what the rule as it is now does not want. A rule that was deleted leaves a row without a lane."""
    no_rule = F.col("lane").isNull()
    wanted = changes.where(no_rule | columns.matches(literal))
    wanted = cel_columns.matches(wanted, filters) if filters else wanted
    return wanted.drop("events", "prefix", "suffix", "filter")
