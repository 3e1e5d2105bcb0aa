"""What an operation may do to what is there: the whole table."""

from __future__ import annotations

from typing import Any

import pytest

from tidings.catalog.commits import changes_of
from tidings.catalog.contents import Held
from tidings.catalog.errors import CatalogError
from tidings.catalog.model import Content, Delete, Key, Operation, Put, Unchanged

KEY = Key.of(["a", "k"])
THERE = Content.of({"type": "T", "id": "i", "mark": 1})
EXPECTED = 10


def state(content: Content | None, number: int) -> dict[str, Held]:
    return {KEY.text: Held(number, "T", "i", content)}


NEVER: dict[str, Held] = {}
OLD, NEW = state(THERE, EXPECTED), state(THERE, EXPECTED + 1)
GONE, GONE_SINCE = state(None, EXPECTED), state(None, EXPECTED + 1)


def put(**values: Any) -> Put:
    return Put(KEY, {"type": "T", "mark": 2, **values})


@pytest.mark.parametrize(
    ("there", "operation", "fits"),
    [
        (NEVER, put(), True),
        (NEVER, put(id="new"), True),
        (NEVER, Delete(KEY), False),
        (NEVER, Unchanged(KEY), True),
        (OLD, put(id="i"), True),
        (OLD, put(), False),  # it would be another content
        (OLD, put(id="other"), False),
        (OLD, put(id="i", type="U"), False),
        (OLD, Delete(KEY), True),
        (OLD, Unchanged(KEY), True),
        (NEW, put(id="i"), False),
        (NEW, Delete(KEY), False),
        (NEW, Unchanged(KEY), False),
        (GONE, put(), True),
        (GONE, put(id="i"), True),
        (GONE, Delete(KEY), False),
        (GONE_SINCE, put(), False),
        (GONE_SINCE, Unchanged(KEY), False),
        (OLD, Put(KEY, {"type": "T", "id": "i", "mark": 2}, THERE.values), True),
        (OLD, Put(KEY, {"type": "T", "id": "i", "mark": 2}, {**THERE.values, "mark": 9}), False),
        (NEVER, Put(KEY, {"type": "T", "id": "i", "mark": 2}, THERE.values), False),
    ],
)
def test_an_operation_fits_what_is_there_or_is_a_conflict(there: dict[str, Held], operation: Operation, fits: bool) -> None:
    if not fits:
        with pytest.raises(CatalogError, match="REFERENCE_CONFLICT") as refused:
            changes_of([operation], there, EXPECTED)
        assert "'a.k'" in refused.value.message
        return
    changes = changes_of([operation], there, EXPECTED)
    if isinstance(operation, Put):
        (change,) = changes
        assert change.content is not None
        assert change.content.values == {**operation.content, "id": change.id}
        assert change.id == (operation.content.get("id") or change.id)
    else:
        assert [each.content for each in changes] == ([None] if isinstance(operation, Delete) else [])


def test_a_removed_key_still_has_its_type() -> None:
    (change,) = changes_of([Delete(KEY)], OLD, EXPECTED)
    assert (change.type, change.id, change.content) == ("T", "i", None)


def test_a_conflict_names_every_key_that_has_one_and_no_other() -> None:
    other = Key.of(["fine"])
    gone = Key.of(["gone"])
    with pytest.raises(CatalogError) as refused:
        changes_of([put(id="i"), Put(other, {"type": "T"}), Delete(gone)], NEW, EXPECTED)
    assert "'a.k'" in refused.value.message
    assert "'gone'" in refused.value.message
    assert "fine" not in refused.value.message
