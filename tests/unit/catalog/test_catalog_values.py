from __future__ import annotations

from typing import Any

import pytest

from tidings.catalog.errors import CatalogError
from tidings.catalog.model import Content, Key, check_hash, check_name
from tidings.catalog.points import ROOT, Point


@pytest.mark.parametrize("name", ["main", "m", "a1", "feature/x", "v1.0", "A-b_c.d/e"])
def test_a_reference_can_have_this_name(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "1a", "a/", "a..b", "-a", "a b", "a*b", "a@b", "DETACHED", "deadbeef", "a" * 501, "ma\n", "é1"]
)
def test_a_reference_cannot_have_this_name(name: str) -> None:
    with pytest.raises(CatalogError, match="BAD_REQUEST"):
        check_name(name)


@pytest.mark.parametrize("hash", ["", "1234567", "g" * 64, "a" * 65, "main"])
def test_this_is_no_hash(hash: str) -> None:
    with pytest.raises(CatalogError, match="BAD_REQUEST"):
        check_hash(hash)


@pytest.mark.parametrize("elements", [None, "a", [], [""], ["a", ""], ["a\n"], [1], ["a"] * 21, ["a" * 501], {"a": 1}])
def test_this_is_no_key(elements: Any) -> None:
    with pytest.raises(CatalogError, match="BAD_REQUEST"):
        Key.of(elements)


def test_a_key_is_the_same_from_a_path_and_from_the_table() -> None:
    key = Key.of(["a", "b.c", "d"])
    assert Key.from_path("a.b\x1dc.d") == key == Key.stored(key.text)
    assert str(key) == 'a."b.c".d'


def test_keys_are_stored_in_the_order_of_their_elements() -> None:
    keys = [Key(each) for each in (("a",), ("a", "b"), ("a", "b", "c"), ("a", "c"), ("a ",), ("a.b",), ("b",))]
    assert sorted(keys, key=lambda key: key.text.encode()) == sorted(keys)


@pytest.mark.parametrize("values", [{}, {"type": 1, "id": "i"}, {"type": "", "id": "i"}, {"type": "T"}, {"type": "T", "id": 1}])
def test_this_is_no_content(values: dict[str, Any]) -> None:
    with pytest.raises(CatalogError, match="BAD_REQUEST"):
        Content.of(values)


def point(number: int, *path: tuple[int, int]) -> Point:
    lines, upto = zip(*path, strict=True)
    return Point(str(number), number, 0, lines, upto, len(lines))


def test_points_know_what_came_before_them_and_where_they_part() -> None:
    main = point(9, (1, 9))
    dev = point(8, (2, 8), (1, 5))
    feature = point(7, (3, 7), (2, 6), (1, 5))
    assert main.has(main)
    assert main.has(point(5, (1, 5)))
    assert not main.has(dev)
    assert dev.has(point(5, (1, 5)))
    assert not dev.has(point(6, (1, 6)))
    assert feature.has(point(6, (2, 6), (1, 5)))
    assert not feature.has(dev)
    assert main.has(ROOT)
    assert not ROOT.has(main)
    assert main.fork(dev) == dev.fork(main) == (1, 5)
    assert dev.fork(feature) == (2, 6)
    assert main.fork(ROOT) == (0, 0)
    assert sorted(main.apart(feature)) == [(1, 5, 9), (2, 0, 6), (3, 0, 7)]
    assert list(main.apart(main)) == []
