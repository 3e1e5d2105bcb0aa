"""What a message says: one file, one format, named for what it is.

A format's file MUST hold `message(context) -> Said`: the message as columns, built from the columns of a change and of its rule
(`rule`, `config_json`). It MUST be deterministic: no clock, no random value, so that a replay gives the same bytes. It names in
`DETAILS` the columns of `schema.DETAILS` that it speaks of; without that it speaks of none.

JSON is put together from pieces with `concat`, three to four times faster than `to_json`. That is safe because nearly every
value is text that needs no escaping by its own making (ids, hashes, times, encoded keys); each piece says which kind it is.
Text that may hold anything is escaped by `to_json`, but only in the rows where that changes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.events.profiles import Profile


@dataclass(frozen=True)
class Context:
    """What a format knows besides the change: what the operator has set, and whether the transport has headers of its own."""

    region: str
    profile: Profile
    system_uuid: str = ""
    system_name: str = ""
    binary: bool = False
    """The transport carries attributes as headers (HTTP, Kafka): a format that can speak in headers does."""


@dataclass(frozen=True)
class Said:
    """A message as columns of text."""

    body: Column
    key: Column | None = None
    """For transports that have keys."""
    attributes: Column | None = None
    """A JSON object of text: what goes beside the body, besides `id` and `sequencer`, which every message has."""


@dataclass(frozen=True)
class Plain:
    """A text column that never holds a quote, a backslash or a control character."""

    column: Column


@dataclass(frozen=True)
class Text:
    """A column of any text. `safe` tells of rows that need no escaping, where something known says so sooner than looking."""

    column: Column
    safe: Column | None = None


@dataclass(frozen=True)
class Json:
    """A column that is JSON already: a number, or text that was escaped where it was made."""

    column: Column


@dataclass(frozen=True)
class Optional:
    """A member that is left out where its column is null. It must not be the first of its object."""

    value: Plain | Text | Json


Value = str | int | Plain | Text | Json | Optional | Mapping[str, "Value"] | list["Value"]


def to_json(value: Value) -> Column:
    """One column with the JSON text of a tree of constants and columns."""
    pieces: list[str | Column] = []
    _write(value, pieces)
    return F.concat(*(F.lit(piece) if isinstance(piece, str) else piece for piece in pieces))


def _write(value: Value, pieces: list[str | Column]) -> None:
    if isinstance(value, Plain):
        _add(pieces, '"', value.column, '"')
    elif isinstance(value, Text):
        _add(pieces, _quoted(value))
    elif isinstance(value, Json):
        _add(pieces, value.column)
    elif isinstance(value, Mapping):
        for index, (name, member) in enumerate(value.items()):
            _write_member(("," if index else "{") + json.dumps(name) + ":", member, pieces)
        _add(pieces, "}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _add(pieces, "," if index else "[")
            _write(item, pieces)
        _add(pieces, "]")
    else:
        _add(pieces, json.dumps(value))


def _quoted(text: Text) -> Column:
    must_escape = text.column.rlike(r'["\\\x00-\x1f]')
    if text.safe is not None:
        must_escape = ~text.safe & must_escape
    in_a_list = F.to_json(F.array(text.column))  # a list of one: its brackets are outside of the quotes
    return F.when(must_escape, F.btrim(in_a_list, F.lit("[]"))).otherwise(F.concat(F.lit('"'), text.column, F.lit('"')))


def _write_member(start: str, member: Value, pieces: list[str | Column]) -> None:
    if isinstance(member, Optional):
        own: list[str | Column] = [start]
        _write(member.value, own)
        whole = F.concat(*(F.lit(piece) if isinstance(piece, str) else piece for piece in own))
        _add(pieces, F.coalesce(whole, F.lit("")))
    else:
        _add(pieces, start)
        _write(member, pieces)


def _add(pieces: list[str | Column], *more: str | Column) -> None:
    """Neighbouring constants become one: fewer pieces, less to copy."""
    for piece in more:
        if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
            pieces[-1] += piece
        else:
            pieces.append(piece)


def message_id() -> Column:
    """The same for a change and a rule at every attempt, in every format."""
    return F.concat_ws(".", "id", "rule")


def sequencer() -> Column:
    """Comparable per key as text: 16 hexadecimal digits, upper case, zero-padded."""
    return F.lpad(F.hex("seq"), 16, "0")


def moment(time: Column) -> Plain:
    """ISO 8601 in UTC, with milliseconds."""
    return Plain(F.date_format(time, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"))


def raw_key() -> Text:
    """The key as it is. One that is its own encoded form needs no escaping either."""
    return Text(F.col("key"), safe=F.col("encoded").isNull())


def encoded_key() -> Plain:
    """The key form-encoded, as the S3 record has it."""
    return Plain(F.coalesce("encoded", "key"))
