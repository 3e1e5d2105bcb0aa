"""Paths, queries, tokens and XML: everything that is text on its way in or out."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.api import listing, numbers, xml
from tidings.api.request import target
from tidings.errors import CallerError
from tidings.store.listing import LAST, Entry

KEYS = st.text(
    st.characters(min_codepoint=32, exclude_characters="\x7f\ufffe\uffff", exclude_categories=["Cs"]), min_size=1, max_size=256
).filter(lambda key: "//" not in key and ".." not in key.split("/"))
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def refused(code: str, *arguments: object, by: object) -> None:
    with pytest.raises(CallerError) as caught:
        by(*arguments)  # type: ignore[operator]
    assert caught.value.code == code


@given(KEYS)
def test_a_key_in_a_path_is_read_as_it_was_meant(key: str) -> None:
    assert target(b"/bucket/" + quote(key, safe="/").encode(), b"").key == key


def test_dots_and_slashes_in_a_path_are_parts_of_the_key() -> None:
    found = target(b"/bucket//a/./b/", b"prefix=a+b%2B&flag")
    assert (found.bucket, found.key, found.query) == ("bucket", "/a/./b/", {"prefix": "a b+", "flag": ""})


@pytest.mark.parametrize(
    ("path", "query", "code"),
    [
        (b"//key", b"", "InvalidURI"),
        (b"/bucket/%ff", b"", "InvalidURI"),
        (b"/%ff%ff%ff/key", b"", "InvalidURI"),
        (b"/bucket", b"prefix=%ff", "InvalidURI"),
        (b"/bucket", b"prefix=%00", "InvalidArgument"),
        (b"/bucket/%00", b"", "InvalidArgument"),
        (b"/bucket/a/../b", b"", "InvalidURI"),
        (b"/bucket/a//b", b"", "InvalidURI"),
        (b"/Bucket/key", b"", "InvalidBucketName"),
        (b"/bucket/" + b"a" * 1025, b"", "KeyTooLongError"),
    ],
)
def test_a_path_that_names_nothing_is_refused(path: bytes, query: bytes, code: str) -> None:
    refused(code, path, query, by=target)


@given(KEYS, st.booleans())
def test_a_token_leads_behind_the_entry_it_was_made_for(name: str, is_prefix: bool) -> None:
    token = listing.token_of(Entry(name, None if is_prefix else 1, "", NOW))
    assert listing.after(token) == (name + LAST if is_prefix else name)
    assert token.isascii()


@pytest.mark.parametrize("token", ["", "x", "!!!!", "a2E=x", "eA==", "a\nE=", "ü", "aGFsbG8", "awA=", "A" * 5000, "a/8="])
def test_a_token_that_is_not_ours_is_refused(token: str) -> None:
    refused("InvalidArgument", token, by=listing.after)


@pytest.mark.parametrize("value", ["-1", "1001", "1.0", "x", " 1", "1_0", "٣", "9" * 30])
def test_a_number_is_plain_digits_within_its_limits(value: str) -> None:
    with pytest.raises(CallerError):
        numbers.between({"max-keys": value}, "max-keys", 0, 1000, 7)


@pytest.mark.parametrize(
    ("query", "number"), [({}, 7), ({"max-keys": ""}, 7), ({"max-keys": "0"}, 0), ({"max-keys": "010"}, 10)]
)
def test_a_number_may_be_left_out(query: dict[str, str], number: int) -> None:
    assert numbers.between(query, "max-keys", 0, 1000, 7) == number


@given(st.text(st.characters(min_codepoint=0x20, exclude_categories=["Cs", "Cn"])))
def test_text_comes_out_of_a_document_as_it_went_in(text: str) -> None:
    if any(ord(character) in (0xFFFE, 0xFFFF) for character in text):
        return  # no document of XML 1.0 can hold them
    root = ElementTree.fromstring(xml.document("Root", [("Outer", [("Inner", text)])]))
    assert root.findtext(f"{{{xml.NAMESPACE}}}Outer/{{{xml.NAMESPACE}}}Inner", "") == text


def test_control_characters_are_written_as_references_and_what_xml_cannot_say_is_replaced() -> None:
    written = xml.document("R", 'a\x01\r\n\x85\uffff<&>"', namespace="")
    assert written.endswith("<R>a\ufffd&#xD;&#xA;&#x85;\ufffd&lt;&amp;&gt;&quot;</R>".encode())
    assert ElementTree.fromstring(written).text == 'a\ufffd\r\n\x85\ufffd<&>"'


@pytest.mark.parametrize(
    ("body", "region"),
    [
        (b"", None),
        (b"  \n", None),
        (b"<CreateBucketConfiguration/>", None),
        (b"<CreateBucketConfiguration><LocationConstraint/></CreateBucketConfiguration>", None),
        (
            b'<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            b"<LocationConstraint>eu-west-1</LocationConstraint></CreateBucketConfiguration>",
            "eu-west-1",
        ),
    ],
)
def test_a_location_constraint_is_read(body: bytes, region: str | None) -> None:
    assert xml.location_constraint(body) == region


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"<", "MalformedXML"),
        (b"hello", "MalformedXML"),
        (b"<Other/>", "MalformedXML"),
        (b"\xff\xfe", "MalformedXML"),
        (b'<?xml version="1.0" encoding="nonsense"?><CreateBucketConfiguration/>', "MalformedXML"),
        (b"<!DOCTYPE a><CreateBucketConfiguration/>", "MalformedXML"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><CreateBucketConfiguration>&b;</CreateBucketConfiguration>', "MalformedXML"),
        (
            b"<CreateBucketConfiguration><LocationConstraint><a/></LocationConstraint></CreateBucketConfiguration>",
            "MalformedXML",
        ),
        (b"<CreateBucketConfiguration><Bucket/></CreateBucketConfiguration>", "NotImplemented"),
        (b"<a>" * 20_000, "MalformedXML"),
        (b"<a>" * 20_000 + b"</a>" * 20_000, "MalformedXML"),
    ],
)
def test_another_document_is_refused(body: bytes, code: str) -> None:
    refused(code, body, by=xml.location_constraint)
