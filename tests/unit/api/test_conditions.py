from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.api.conditions import byte_range, unmodified
from tidings.errors import CallerError
from tidings.store.model import Version

MODIFIED = datetime(2026, 3, 4, 5, 6, 7, 890_000, UTC)
HEAD = Version("null", False, 10, "abc", "text/plain", {}, {}, MODIFIED, None, "unversioned")
BEFORE, SAME, AFTER = (f"Wed, 04 Mar 2026 05:06:0{second} GMT" for second in (6, 7, 8))


@pytest.mark.parametrize(
    ("headers", "answer"),
    [
        ({}, False),
        ({"if-match": '"abc"'}, False),
        ({"if-match": "*"}, False),
        ({"if-match": '"x", "abc"'}, False),
        ({"if-match": "abc"}, False),
        ({"if-none-match": '"abc"'}, True),
        ({"if-none-match": 'W/"abc"'}, True),
        ({"if-none-match": "*"}, True),
        ({"if-none-match": '"x"'}, False),
        ({"if-modified-since": BEFORE}, False),
        ({"if-modified-since": SAME}, True),
        ({"if-modified-since": AFTER}, True),
        ({"if-modified-since": "yesterday"}, False),
        ({"if-unmodified-since": SAME}, False),
        ({"if-unmodified-since": "yesterday"}, False),
        ({"if-none-match": '"x"', "if-modified-since": AFTER}, False),
        ({"if-match": '"abc"', "if-unmodified-since": BEFORE}, False),
        ({"if-match": '"abc"', "if-none-match": '"abc"'}, True),
    ],
)
def test_a_condition_that_holds_gives_the_object_or_304(headers: dict[str, str], answer: bool) -> None:
    assert unmodified(headers, HEAD) is answer


@pytest.mark.parametrize(
    "headers",
    [{"if-match": '"x"'}, {"if-unmodified-since": BEFORE}, {"if-match": '"x"', "if-none-match": '"abc"'}],
)
def test_a_condition_that_fails_is_a_failed_precondition(headers: dict[str, str]) -> None:
    with pytest.raises(CallerError) as caught:
        unmodified(headers, HEAD)
    assert (caught.value.code, caught.value.status) == ("PreconditionFailed", 412)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=2-5", (2, 6)),
        ("bytes=2-", (2, 10)),
        ("bytes=9-", (9, 10)),
        ("bytes=0-99", (0, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-99", (0, 10)),
        ("bytes=5-2", None),
        ("bytes=-", None),
        ("bytes=0-1,3-4", None),
        ("bytes = 0-1", None),
        ("lines=0-1", None),
        ("bytes=a-b", None),
        ("bytes=+1-2", None),
        ("", None),
    ],
)
def test_one_range_of_bytes_is_cut_to_the_object_and_anything_else_is_ignored(
    value: str, wanted: tuple[int, int] | None
) -> None:
    assert byte_range({"range": value}, HEAD) == wanted


@pytest.mark.parametrize(
    ("if_range", "partial"),
    [('"abc"', True), ('"x"', False), ('W/"abc"', False), (SAME, True), (BEFORE, False), (AFTER, False), ("?", False)],
)
def test_a_range_is_given_only_of_what_if_range_means(if_range: str, partial: bool) -> None:
    assert byte_range({"range": "bytes=2-5", "if-range": if_range}, HEAD) == ((2, 6) if partial else None)


@pytest.mark.parametrize(("value", "size"), [("bytes=10-", 10), ("bytes=10-12", 10), ("bytes=-0", 10), ("bytes=0-", 0)])
def test_a_range_without_a_byte_in_it_is_not_satisfiable(value: str, size: int) -> None:
    with pytest.raises(CallerError) as caught:
        byte_range({"range": value}, HEAD._replace(size=size))
    assert caught.value.status == 416
    assert caught.value.elements["ActualObjectSize"] == str(size)


@given(st.text(max_size=20), st.integers(0, 5))
def test_no_range_is_ever_outside_the_object(value: str, size: int) -> None:
    try:
        wanted = byte_range({"range": f"bytes={value}"}, HEAD._replace(size=size))
    except CallerError:
        return
    assert wanted is None or 0 <= wanted[0] < wanted[1] <= size
