from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tidings.errors import CallerError
from tidings.store.names import bucket_name, object_key

GOOD = ["abc", "a-b.c", "1bucket", "a" * 63, "xn-dash", "192.168.1", "1.2.3.4.5", "s3alias"]
BAD = [
    "",
    "ab",
    "a" * 64,
    "Abc",
    "a_b",
    "-abc",
    "abc-",
    ".abc",
    "abc.",
    "a..b",
    "192.168.5.4",
    "999.999.999.999",
    "xn--abc",
    "sthree-abc",
    "amzn-s3-demo-x",
    "abc-s3alias",
    "abc--ol-s3",
    "abc.mrap",
    "abc--x-s3",
    "abc--table-s3",
    "ab c",
    "abc\n",
    "abc\0",
    "büro",
    "a/b",
]


@pytest.mark.parametrize("name", GOOD)
def test_a_name_that_s3_allows_is_a_bucket_name(name: str) -> None:
    assert bucket_name(name) == name


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_s3_refuses_is_refused(name: str) -> None:
    with pytest.raises(CallerError) as caught:
        bucket_name(name)
    assert caught.value.code == "InvalidBucketName"


TEXT = st.characters(min_codepoint=32, exclude_characters="/\x7f\ufffe\uffff", exclude_categories=["Cs"])


@given(st.text(TEXT, min_size=1, max_size=256))
def test_any_text_is_a_key(text: str) -> None:
    assume(text != "..")
    assert object_key(text.encode()) == text


@pytest.mark.parametrize("key", ["a..b", "...", "a/..b/c..", "./a", "/a", "a/", "a\x80b", "\U0001f389"])
def test_what_only_looks_odd_is_a_key(key: str) -> None:
    assert object_key(key.encode()) == key


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"x" * 1025, "KeyTooLongError"),
        ("ü".encode() * 513, "KeyTooLongError"),
        (b"\xff", "InvalidURI"),
        (b"\xed\xa0\x80", "InvalidURI"),  # a lone surrogate
        (b"a\0b", "InvalidArgument"),
        (b"a\nb", "InvalidArgument"),
        (b"\x1b[2J", "InvalidArgument"),
        (b"a\x7f", "InvalidArgument"),
        ("\uffff".encode(), "InvalidArgument"),
        (b"..", "InvalidURI"),
        (b"../a", "InvalidURI"),
        (b"a/../b", "InvalidURI"),
        (b"a/..", "InvalidURI"),
        (b"a//b", "InvalidURI"),
        (b"a//", "InvalidURI"),
    ],
)
def test_what_is_no_key_is_refused(raw: bytes, code: str) -> None:
    with pytest.raises(CallerError) as caught:
        object_key(raw)
    assert caught.value.code == code


def test_a_key_may_have_1024_bytes() -> None:
    assert object_key(b"x" * 1024) == "x" * 1024
