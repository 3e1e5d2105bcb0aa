"""Forms as they arrive, however they are cut."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signed_requests import Arriving
from tidings.api.form import MAX_FIELDS, Form, is_form
from tidings.errors import STATUS, CallerError

TYPE = "multipart/form-data; boundary=xyz"


def part(disposition: str, value: bytes, *headers: str) -> bytes:
    lines = "\r\n".join([f"Content-Disposition: form-data; {disposition}", *headers])
    return b"--xyz\r\n" + lines.encode() + b"\r\n\r\n" + value + b"\r\n"


END = b"--xyz--\r\n"
FILE = part('name="file"; filename="a.txt"', b"hello", "Content-Type: text/plain")


def read(body: bytes, size: int = 1 << 20, content_type: str = TYPE) -> tuple[Form, bytes]:
    async def run() -> tuple[Form, bytes]:
        form = Form(Arriving(body, size), content_type)
        await form.read()
        data = b""
        while not form.ended:
            data += await form.next()
        return form, data

    return asyncio.run(run())


def refused(body: bytes, content_type: str = TYPE) -> str:
    codes = set()
    for size in (1, 5, 1 << 20):
        with pytest.raises(CallerError) as caught:
            read(body, size, content_type)
        assert caught.value.code in STATUS
        codes.add(caught.value.code)
    [code] = codes
    return code


@given(st.binary(max_size=200), st.integers(1, 60))
def test_a_file_comes_out_as_it_went_in_whatever_it_holds(data: bytes, size: int) -> None:
    tricky = data.replace(b"\r\n--xyz", b"")
    for value in (tricky, tricky + b"\r\n--xy", b"\r\n--\r\n" + tricky, b"--xyz--" + tricky, b"\r" + tricky + b"\r\n"):
        form, found = read(part('name="Key"', b"a\r\nb") + part('name="file"', value) + END, size)
        assert (form.fields, found) == ({"key": "a\r\nb"}, value)


@pytest.mark.parametrize(
    ("disposition", "filename"),
    [
        ('name="file"; filename="a.txt"', "a.txt"),
        ("name=file; filename=a.txt", "a.txt"),
        ('NAME="File";FILENAME="a.txt"', "a.txt"),
        ('filename="a.txt"; name="file"', "a.txt"),
        ('name="file"; filename="C:\\\\dir\\\\a.txt"', "a.txt"),
        ('name="file"; filename="/etc/../a.txt"', "a.txt"),
        ('name="file"; filename="a\\"b.txt"', 'a"b.txt'),
        ('name="file"; filename="ünï.txt"', "ünï.txt"),
        ('name="file"; filename=""', ""),
        ('name="file"', ""),
    ],
)
def test_the_name_of_the_file_comes_without_its_folders(disposition: str, filename: str) -> None:
    form, data = read(part(disposition, b"hello") + END)
    assert (form.filename, data) == (filename, b"hello")


def test_nothing_counts_that_follows_the_file() -> None:
    late = part('name="key"', b"late") + part('name="file"', b"second")
    form, data = read(FILE + late + END)
    assert (form.fields, data) == ({}, b"hello")
    assert read(FILE + END + b"epilogue")[1] == b"hello"
    assert refused(FILE + part('name="x"', bytes(MAX_FIELDS)) + END) == "MalformedPOSTRequest"


def test_the_fields_are_bounded_and_the_file_is_not() -> None:
    room = MAX_FIELDS - 400
    assert len(read(part('name="a"', b"a" * room) + part('name="file"', bytes(3 << 20)) + END, 65536)[1]) == 3 << 20
    assert refused(part('name="a"', b"a" * MAX_FIELDS) + FILE + END) == "MaxPostPreDataLengthExceededError"
    many = b"".join([part(f'name="a{n}"', b"") for n in range(1000)])
    assert refused(many + FILE + END) == "MaxPostPreDataLengthExceededError"
    assert refused(b"--xyz\r\n" + b"X: y\r\n" * 10_000) == "MaxPostPreDataLengthExceededError"


def test_an_endless_field_is_refused_before_it_fills_the_memory() -> None:
    async def run() -> int:
        body = Arriving(b"--xyz\r\n" + bytes(10 << 20), 1000)
        form = Form(body, TYPE)
        with pytest.raises(CallerError):
            await form.read()
        return body.left - len(body._pieces)

    assert asyncio.run(run()) <= 22


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--xyz",
        b"--xyz\r\n",
        b"hello",
        b"\r\n" + FILE + END,
        b"preamble\r\n" + FILE + END,
        b"--abc\r\n" + FILE + END,
        FILE,
        FILE[:-2],
        FILE[:-10],
        FILE + b"--xyz",
        FILE + b"--xyz-",
        FILE + b"--xyzz--\r\n",
        FILE.replace(b"\r\n", b"\n") + END,
        b"--xyz \r\n" + FILE[7:] + END,
        part('name="a"', b"\xff") + FILE + END,
        part('name=""', b"") + FILE + END,
        part('filename="a"', b"") + FILE + END,
        part('name="a"; name="b"', b"") + FILE + END,
        part('name="a', b"") + FILE + END,
        part('name="a"', b"", "Content-Disposition: form-data; name=b") + FILE + END,
        part('name="a"', b"", " folded") + FILE + END,
        part('name="file"', b"aGVsbG8=", "Content-Transfer-Encoding: base64") + END,
        b"--xyz\r\n\r\n\r\n" + FILE + END,
        b"--xyz\r\nContent-Disposition: attachment; name=a\r\n\r\n\r\n" + FILE + END,
        b"--xyz\r\nContent-Disposition: form-data; name=\xff\r\n\r\n\r\n" + FILE + END,
    ],
)
def test_what_is_not_a_form_is_refused(body: bytes) -> None:
    assert refused(body) == "MalformedPOSTRequest"


def test_a_form_has_one_file_and_each_field_once() -> None:
    assert refused(part('name="a"', b"1") + END) == "IncorrectNumberOfFilesInPostRequest"
    assert refused(part('name="a"', b"1") + part('name="A"', b"1") + FILE + END) == "InvalidArgument"


@pytest.mark.parametrize(
    "content_type",
    ["", "; boundary=", "; boundary=" + "a" * 71, '; boundary="a', "; boundary=a b", "; charset=utf-8"],
)
def test_a_form_needs_a_boundary(content_type: str) -> None:
    content_type = f"multipart/form-data{content_type}"
    assert is_form(content_type)
    assert refused(FILE + END, content_type) == "MalformedPOSTRequest"


@pytest.mark.parametrize("content_type", ['multipart/form-data; boundary="xyz"', "Multipart/Form-Data;BOUNDARY=xyz"])
def test_a_boundary_can_be_quoted(content_type: str) -> None:
    assert is_form(content_type)
    assert read(FILE + END, content_type=content_type)[1] == b"hello"


@given(st.binary(max_size=40), st.integers(0), st.integers(1, 50))
def test_noise_is_a_refusal_and_never_a_failure_of_ours(noise: bytes, at: int, size: int) -> None:
    body = part('name="key"', b"value") + FILE + END
    at %= len(body)
    with suppress(CallerError):
        read(body[:at] + noise + body[at:], size)
