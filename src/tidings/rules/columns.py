"""Does a rule want a change? As Spark columns: `match.matches` for a DataFrame, without a Python worker in between."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def matches(literal: bool = False) -> Column:
    """True or false, never null: from a change's `event`, `key`, `encoded` and a rule's `events`, `prefix`, `suffix`.

    `encoded` is null where it equals the key; `prefix` and `suffix` are null or empty where they are not set. Where only
    the `literal` key counts, `encoded` does not.
    """
    wanted, as_it_is = _wanted(), _satisfied_by("key")
    encoded = F.coalesce(_satisfied_by("encoded"), F.lit(False))
    return wanted & (as_it_is if literal else as_it_is | encoded)


def _wanted() -> Column:
    """`events.names.wanted_by`: the rule asks for the event by its name, or for its whole category."""
    event = F.col("event")
    name = F.concat(F.lit("s3:"), event)
    category = F.concat(F.lit("s3:"), F.substring_index(event, ":", 1), F.lit(":*"))
    return F.array_contains("events", name) | F.array_contains("events", category)


def _satisfied_by(form: str) -> Column:
    starts = F.startswith(F.col(form), F.coalesce("prefix", F.lit("")))
    ends = F.endswith(F.col(form), F.coalesce("suffix", F.lit("")))
    return starts & ends
