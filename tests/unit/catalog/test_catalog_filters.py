from __future__ import annotations

import pytest

from tidings.catalog.errors import CatalogError
from tidings.catalog.filters import parse

KNOWN = {"commit": frozenset({"author", "commitTime"}), "entry": frozenset({"namespace", "contentType"})}
VALUES = {
    "commit": {"author": "ann", "commitTime": "2026-01-31T12:00:00.5Z"},
    "entry": {"namespace": "a.b", "contentType": "ICEBERG_TABLE"},
}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("commit.author=='ann'", True),
        ('commit.author == "bob"', False),
        ("commit.author != 'bob'", True),
        ("(commit.author=='bob' || commit.author=='ann')", True),
        ("commit.author=='ann' && commit.author=='bob'", False),
        ("commit.author=='bob' && commit.author=='bob' || commit.author=='ann'", True),
        ("!(commit.author=='bob')", True),
        ("timestamp(commit.commitTime) > timestamp('2026-01-31T12:00:00+00:00')", True),
        ("timestamp(commit.commitTime) < timestamp('2026-01-31T12:00:00+00:00')", False),
        (
            "(timestamp(commit.commitTime) >= timestamp('2026-01-31') && commit.author == 'ann')",
            True,
        ),
        ("entry.contentType in ['ICEBERG_TABLE','DELTA_LAKE_TABLE']", True),
        ("entry.contentType in ['DELTA_LAKE_TABLE']", False),
        ("entry.contentType in []", False),
        ("entry.namespace.startsWith('a')", True),
        ("entry.namespace.startsWith('b')", False),
        ("entry.namespace.endsWith('.b') && entry.namespace.contains('.')", True),
    ],
)
def test_a_filter_of_the_command_chooses(text: str, wanted: bool) -> None:
    assert parse(text, KNOWN)(VALUES) is wanted


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 1),
        ("commit", 7),
        ("commit.author", 14),
        ("commit.nothing == 'a'", 8),
        ("nobody.author == 'a'", 1),
        ("commit.author == 1", 17),
        ("commit.author == timestamp('2026-01-01')", 41),
        ("commit.author.matches('a')", 15),
        ("commit.author in 'a'", 17),
        ("commit.author == 'a", 17),
        ("(commit.author == 'a'", 22),
        ("commit.author == 'a' commit", 21),
        ("commit.author == 'a' and", 21),
        ("'a'.size()", 4),
    ],
)
def test_what_is_not_served_is_refused_with_its_place(text: str, position: int) -> None:
    with pytest.raises(CatalogError, match="BAD_REQUEST") as refused:
        parse(text, KNOWN)
    assert f"position {position}," in refused.value.message


@pytest.mark.parametrize("text", ["(" * 1000, "!" * 1000, "commit.author == '" + "a" * 5000 + "'"])
def test_a_filter_has_its_limits(text: str) -> None:
    with pytest.raises(CatalogError, match="BAD_REQUEST"):
        parse(text, KNOWN)


def test_a_time_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(CatalogError, match="BAD_REQUEST"):
        parse("timestamp('soon') < timestamp('later')", KNOWN)(VALUES)
