"""Does a rule want a change? In Python: what `columns` says in Spark and `table.MATCHED` in SQL."""

from __future__ import annotations

from collections.abc import Collection

from tidings.events import keys, names


def matches(events: Collection[str], prefix: str, suffix: str, *, event: str, key: str, literal: bool = False) -> bool:
    """Whether a rule with these events and this filter wants the change `event` (a bare name) of `key`.

    On AWS a filter is compared with the form-encoded key, in seed 000 with the literal one. Tenants come with both
    habits, so unless only the `literal` key counts either may satisfy it, but whole: a prefix of the one and a suffix of
    the other do not.
    """
    wanted = not set(names.wanted_by(event)).isdisjoint(events)
    forms = (key,) if literal else (key, keys.form_encoded(key))
    return wanted and any(form.startswith(prefix) and form.endswith(suffix) for form in forms)
