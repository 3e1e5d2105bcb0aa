"""Forms that upload: what they write, and how they are answered."""

from __future__ import annotations

import pytest

from signed_requests import Boto3, Posted, form_refusal, posted, serve_form
from tidings.api import post
from tidings.api.tagging import read_tags
from tidings.errors import CallerError


@pytest.fixture(scope="module")
def client() -> Boto3:
    return Boto3("https://store.example", signature_version="s3v4")


def with_field(client: Boto3, name: str, value: str) -> Posted:
    return posted(client, fields={name: value})


@pytest.mark.parametrize(
    ("key", "filename", "expected"),
    [
        ("up/${filename}", "a b.txt", "up/a b.txt"),
        ("up/${filename}", "../../etc/passwd", "up/passwd"),
        ("up/${filename}", "...", "up/..."),
        ("up/${filename}", "${filename}", "up/${filename}"),
        ("up/plain", "a.txt", "up/plain"),
    ],
)
def test_the_file_s_name_goes_into_the_key(client: Boto3, key: str, filename: str, expected: str) -> None:
    accepted, _ = serve_form(posted(client, key, filename=filename))
    assert accepted.request.key == expected


def test_a_file_s_name_cannot_climb(client: Boto3) -> None:
    assert form_refusal(posted(client, "up/${filename}", filename="..")).code == "InvalidURI"


def test_a_file_s_name_cannot_leave_what_the_policy_allows(client: Boto3) -> None:
    form = posted(client, "up/${filename}").changed(key=b"${filename}")
    assert form_refusal(form).code == "AccessDenied"


@pytest.mark.parametrize(
    ("key", "code"), [("k" * 1025, "KeyTooLongError"), ("a\0b", "InvalidArgument"), ("a/../b", "InvalidURI")]
)
def test_a_key_that_cannot_be_is_refused(client: Boto3, key: str, code: str) -> None:
    assert form_refusal(posted(client, key)).code == code


def test_the_bucket_can_be_in_the_host(client: Boto3) -> None:
    form = posted(client)
    virtual = Posted(form.parts, form.now, b"/", host=b"bucket.store.example")
    accepted, _ = serve_form(virtual, domains=("store.example",))
    assert accepted.request.bucket == "bucket"
    other = Posted(form.parts, form.now, b"/", host=b"other.store.example")
    assert form_refusal(other, domains=("store.example",)).code == "AccessDenied"


@pytest.mark.parametrize("value", ["a\r\nset-cookie: b", "a\nb", "a\0b", "\x7f"])
def test_a_field_that_would_break_a_header_is_refused(client: Boto3, value: str) -> None:
    for name in ("Content-Type", "x-amz-meta-a", "Content-Disposition"):
        assert form_refusal(with_field(client, name, value)).code == "InvalidArgument"


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_the_file_must_have_the_checksum_that_a_field_says(client: Boto3, piece: int) -> None:
    for name, right, wrong in [
        ("x-amz-checksum-crc32", "NhCmhg==", "AAAAAA=="),
        ("Content-MD5", "XUFAKrxLKna5cZ2REBfFkg==", "XUFAKrxLKna5cZ2REBfFkw=="),
    ]:
        assert serve_form(with_field(client, name, right), piece)[1] == b"hello"
        assert form_refusal(with_field(client, name, wrong), size=piece).code in ("BadDigest", "InvalidDigest")


@pytest.mark.parametrize(("value", "status"), [("200", 200), ("201", 201), ("204", 204), ("404", 204), ("", 204)])
def test_a_form_says_what_it_wants_as_an_answer(client: Boto3, value: str, status: int) -> None:
    accepted, _ = serve_form(with_field(client, "success_action_status", value))
    answer = post._answer(accepted, "abc", {})
    assert (answer.status, answer.headers["etag"]) == (status, '"abc"')
    assert answer.headers["location"] == "http://store.example/bucket/folder/key"
    assert isinstance(answer.body, bytes)
    document = b"<PostResponse><Location>http://store.example/bucket/folder/key</Location><Bucket>bucket</Bucket>"
    assert (document in answer.body) == (status == 201)


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("https://example.org/done", "https://example.org/done?bucket=bucket&key=folder%2Fkey&etag=%22abc%22"),
        ("http://example.org/?a=b#c", "http://example.org/?a=b&bucket=bucket&key=folder%2Fkey&etag=%22abc%22#c"),
    ],
)
def test_a_browser_is_sent_on(client: Boto3, url: str, location: str) -> None:
    accepted, _ = serve_form(with_field(client, "success_action_redirect", url))
    answer = post._answer(accepted, "abc", {})
    assert (answer.status, answer.headers["location"]) == (303, location)


@pytest.mark.parametrize(
    "url",
    [
        "/done",
        "done",
        "//example.org",
        "javascript:alert(1)",
        "data:text/html,x",
        "https:///x",
        "ftp://example.org",
        "https://example.org/\r\nset-cookie: a",
        "https://exa mple.org",
        "https://[::1",
        "https://" + "a" * 3000,
    ],
)
def test_a_browser_is_sent_nowhere_but_to_the_web(client: Boto3, url: str) -> None:
    assert form_refusal(with_field(client, "success_action_redirect", url)).code == "InvalidArgument"


def test_only_a_post_with_one_content_type_and_no_query_is_a_form() -> None:
    form = (b"content-type", b"multipart/form-data; boundary=a")
    assert post.is_post("POST", b"", [form])
    for method, query, headers in [
        ("PUT", b"", [form]),
        ("POST", b"delete", [form]),
        ("POST", b"", [form, form]),
        ("POST", b"", [(b"content-type", b"multipart/form-data2; boundary=a")]),
        ("POST", b"", []),
    ]:
        assert not post.is_post(method, query, headers)


def test_tags_come_as_a_document() -> None:
    tag = b"<Tag><Key>a</Key><Value>b</Value></Tag>"
    assert read_tags(b"<Tagging><TagSet>" + tag + b"</TagSet></Tagging>") == {"a": "b"}
    empty = b"<Tagging><TagSet><Tag/></TagSet></Tagging>"
    for wrong in (b"a=b", b"<Tagging/>", b"<Tagging><Tag/></Tagging>", empty, b"<!DOCTYPE a><Tagging/>"):
        with pytest.raises(CallerError):
            read_tags(wrong)
