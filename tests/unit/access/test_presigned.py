"""Presigned URLs: genuine ones pass, every change to one is refused, and nothing can be added to one."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from signed_requests import (
    KEY,
    OTHER_KEY,
    REGION,
    Boto3,
    Request,
    presigned_by_hand,
    received,
    refusal,
    serve,
    signed_by_hand,
    signed_in_chunks,
)
from tidings.access import sigv4
from tidings.errors import CallerError

MALFORMED = "AuthorizationQueryParametersError"
MISMATCH = "SignatureDoesNotMatch"


@pytest.fixture(scope="module")
def client() -> Boto3:
    return Boto3("https://store.example:9000", signature_version="s3v4")


@pytest.fixture(scope="module")
def genuine(client: Boto3) -> list[Request]:
    one: dict[str, Any] = {"Bucket": "bucket", "Key": "a b/ü%key"}
    typed = {"Content-Type": "text/plain", "x-amz-meta-a": "B c"}
    return [
        client.presign("get_object", **one, ResponseContentType="text/plain; a=b"),
        client.presign("put_object", b"hello", **one),
        client.presign("head_object", **one),
        client.presign("delete_object", **one),
        presigned_by_hand("PUT", "https://store.example/bucket/key", b"hello", typed),
    ]


def test_genuine_urls_pass(genuine: list[Request]) -> None:
    assert [serve(request).length for request in genuine] == [0, 5, 0, 0, 5]


def test_a_url_names_what_was_spent_on_its_signature(genuine: list[Request]) -> None:
    request = genuine[0]
    signed = sigv4.parse(request.method, request.path, request.query, request.headers, request.now, REGION)
    names = {part.partition("=")[0] for part in request.query.decode().split("&")}
    assert names - signed.spent == {"response-content-type"}


def test_the_example_of_the_aws_documentation_passes() -> None:
    query = (
        b"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
        b"&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        b"&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )
    headers = ((b"host", b"examplebucket.s3.amazonaws.com"),)
    request = received("GET", f"http://x/test.txt?{query.decode()}", {}, b"")
    signed = sigv4.parse("GET", b"/test.txt", query, headers, request.now + timedelta(hours=23), "us-east-1")
    sigv4.verify(signed, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")


def parts_of(request: Request) -> dict[bytes, bytes]:
    return dict(part.split(b"=", 1) for part in request.query.split(b"&"))


def with_parts(request: Request, parts: dict[bytes, bytes]) -> Request:
    return replace(request, query=b"&".join([b"%s=%s" % pair for pair in parts.items()]))


def test_the_order_of_the_parameters_says_nothing(genuine: list[Request]) -> None:
    for request in genuine:
        serve(with_parts(request, dict(reversed(parts_of(request).items()))))


def test_a_url_is_good_from_a_little_before_its_date_until_it_expires(client: Boto3) -> None:
    request = client.presign("get_object", seconds=600, Bucket="bucket", Key="key")
    for seconds in (-900, 0, 599, 600):
        serve(replace(request, now=request.now + timedelta(seconds=seconds)))
    late = refusal(replace(request, now=request.now + timedelta(seconds=601)))
    assert (late.code, late.message) == ("AccessDenied", "Request has expired")
    assert late.elements["X-Amz-Expires"] == "600"
    assert late.elements["Expires"] == (request.now + timedelta(seconds=600)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert late.elements["ServerTime"] == (request.now + timedelta(seconds=601)).strftime("%Y-%m-%dT%H:%M:%SZ")
    early = refusal(replace(request, now=request.now - timedelta(seconds=901)))
    assert (early.code, early.message) == ("AccessDenied", "Request is not valid yet")


def test_the_longest_url_is_good_for_seven_days(client: Boto3) -> None:
    request = client.presign("get_object", seconds=604_800, Bucket="bucket", Key="key")
    serve(replace(request, now=request.now + timedelta(days=7)))
    for seconds in (604_801, 10**9):
        assert refusal(client.presign("get_object", seconds=seconds, Bucket="bucket", Key="key")).code == MALFORMED


Mutant = tuple[str, Request, str]


def _parameter_mutants(request: Request) -> Iterator[Mutant]:
    parts = parts_of(request)
    for name, value in parts.items():
        ours = name.startswith(b"X-Amz-")
        rest = {other: parts[other] for other in parts if other != name}
        gone = MALFORMED if ours else MISMATCH
        yield f"drop {name!r}", with_parts(request, rest), gone
        yield f"double {name!r}", replace(request, query=request.query + b"&%s=%s" % (name, value)), "InvalidArgument"
        again = b"&%s%%%02X=%s" % (name[:-1], name[-1], value)
        yield f"double {name!r}, encoded", replace(request, query=request.query + again), "InvalidArgument"
        if ours:
            yield f"lower {name!r}", with_parts(request, {**rest, name.lower(): value}), MALFORMED
            yield f"also lower {name!r}", with_parts(request, {**parts, name.lower(): value}), MALFORMED
        yield f"upper {name!r}", with_parts(request, {**rest, name.upper(): value}), gone
        yield f"empty {name!r}", with_parts(request, {**parts, name: b""}), gone
        yield f"append to {name!r}", with_parts(request, {**parts, name: value + b"0"}), "any"
        yield f"prepend to {name!r}", with_parts(request, {**parts, name: b"0" + value}), "any"
        yield f"encode {name!r} twice", with_parts(request, {**parts, name: value.replace(b"%", b"%25") + b"%25"}), "any"
        yield f"space in {name!r}", with_parts(request, {**parts, name: value + b"+"}), "any"
        yield f"NUL in {name!r}", with_parts(request, {**parts, name: value + b"%00"}), "any"
        yield f"line end in {name!r}", with_parts(request, {**parts, name: value + b"%0A"}), "any"
        yield f"broken {name!r}", with_parts(request, {**parts, name: value + b"%4"}), "InvalidURI"
        if value.swapcase() != value:
            yield f"case of {name!r}", with_parts(request, {**parts, name: value.swapcase()}), "any"
    for more in (b"acl=", b"uploads", b"versionId=1", b"x-id=GetObject", b"response-expires=0", b"="):
        yield f"add {more!r}", replace(request, query=request.query + b"&" + more), MISMATCH
    for more in (b"x-amz-copy-source=%2Fother%2Fkey", b"x-amz-acl=public-read", b"X-Amz-Meta-New=1", b"X-Amz-Security-Token=t"):
        yield f"add {more!r}", replace(request, query=request.query + b"&" + more), MISMATCH
    for more in (b"AWSAccessKeyId=k", b"Signature=s"):
        yield f"add {more!r}", replace(request, query=request.query + b"&" + more), "InvalidArgument"


def _credential_mutants(request: Request) -> Iterator[Mutant]:
    parts = parts_of(request)
    credential, names, signature = parts[b"X-Amz-Credential"], parts[b"X-Amz-SignedHeaders"], parts[b"X-Amz-Signature"]
    key, date, region, service, terminator = credential.split(b"%2F")

    def other(*scope: bytes) -> Request:
        return with_parts(request, {**parts, b"X-Amz-Credential": b"%2F".join(scope)})

    yield "another tenant's key", other(OTHER_KEY.encode(), date, region, service, terminator), MISMATCH
    yield "unknown key", other(key + b"X", date, region, service, terminator), "InvalidAccessKeyId"
    for wrong in (b"", b"k" * 129, b"k%C3%BC", b"a%2Fb", b"k%20"):
        yield f"key {wrong!r}", other(wrong, date, region, service, terminator), MALFORMED
    for wrong in (b"", b"20000101", date[:7], date + b"0", b"today"):
        yield f"date {wrong!r}", other(key, wrong, region, service, terminator), MALFORMED
    for wrong in (b"", b"us-east-1", region.upper(), b"*"):
        yield f"region {wrong!r}", other(key, date, wrong, service, terminator), MALFORMED
    for wrong in (b"", b"S3", b"sqs", b"s3express"):
        yield f"service {wrong!r}", other(key, date, region, wrong, terminator), MALFORMED
    for wrong in (b"", b"aws4", b"AWS4_REQUEST", b"aws4_request%2Faws4_request"):
        yield f"terminator {wrong!r}", other(key, date, region, service, wrong), MALFORMED
    for wrong in (b"", b"AWS4-HMAC-SHA512", b"aws4-hmac-sha256", b"AWS4-ECDSA-P256-SHA256", b"none"):
        yield f"algorithm {wrong!r}", with_parts(request, {**parts, b"X-Amz-Algorithm": wrong}), MALFORMED
    for wrong in (b"", b"%3B", names.upper(), names + b"%3B", names + b"%3Bhost", b"zzz%3B" + names, b"host%2Cx"):
        yield f"signed headers {wrong!r}", with_parts(request, {**parts, b"X-Amz-SignedHeaders": wrong}), MALFORMED
    absent = with_parts(request, {**parts, b"X-Amz-SignedHeaders": names + b"%3Bzzz"})
    yield "a signed header that is not there", absent, MISMATCH
    yield "host not signed", with_parts(request, {**parts, b"X-Amz-SignedHeaders": b"accept"}), "AccessDenied"
    for at in range(0, 64, 3):
        flipped = signature[:at] + (b"0" if signature[at : at + 1] != b"0" else b"1") + signature[at + 1 :]
        yield f"signature digit {at}", with_parts(request, {**parts, b"X-Amz-Signature": flipped}), MISMATCH
    for text in (b"", signature[:-1], signature + b"0", b"g" * 64, b"%FF" * 64):
        yield f"signature {text!r}", with_parts(request, {**parts, b"X-Amz-Signature": text}), MALFORMED


def _time_mutants(request: Request) -> Iterator[Mutant]:
    parts = parts_of(request)
    for seconds in (-901, -86_400, 3601, 86_400, 604_801, 400 * 86_400):
        yield f"{seconds} s", replace(request, now=request.now + timedelta(seconds=seconds)), "AccessDenied"
    for wrong in (b"", b"0", b"-1", b"604801", b"1e3", b"3600.0", b"%2B3600", b"0x10", b"%D9%A3", b"9" * 30):
        yield f"expires {wrong!r}", with_parts(request, {**parts, b"X-Amz-Expires": wrong}), MALFORMED
    for longer in (b"1", b"3599", b"3601", b"03600", b"604800"):
        yield f"expires {longer!r}", with_parts(request, {**parts, b"X-Amz-Expires": longer}), MISMATCH
    for wrong in (
        b"yesterday",
        b"20130524",
        b"2013-05-24T00:00:00Z",
        b"20131324T000000Z",
        b"20130524T000000",
        b"0" * 15 + b"Z",
    ):
        yield f"date {wrong!r}", with_parts(request, {**parts, b"X-Amz-Date": wrong}), MALFORMED
    later = (request.now + timedelta(days=1)).strftime("%Y%m%dT%H%M%SZ").encode()
    renewed = replace(with_parts(request, {**parts, b"X-Amz-Date": later}), now=request.now + timedelta(days=1))
    yield "renewed", renewed, MALFORMED


def _other_mutants(request: Request) -> Iterator[Mutant]:
    for method in {"GET", "HEAD", "PUT", "POST", "DELETE", request.method.lower()} - {request.method}:
        yield f"method {method}", replace(request, method=method), MISMATCH
    path = request.path
    for wrong in (path + b"x", path + b"/", b"/" + path, path + b"/../other", path + b"%00", path.upper(), path + b"%2E"):
        yield f"path {wrong!r}", replace(request, path=wrong), MISMATCH
    yield "no host", request.without_header("host"), MISMATCH
    yield "another host", request.with_header("host", b"elsewhere.example"), MISMATCH
    yield "two hosts", replace(request, headers=(*request.headers, (b"host", b"elsewhere.example"))), MISMATCH
    for extra in ("x-amz-copy-source", "x-amz-acl", "x-amz-meta-new", "x-amz-tagging", "x-amz-date", "X-AMZ-Security-Token"):
        yield f"add {extra}", request.with_header(extra, b"/other/key"), "AccessDenied"
    for extra in ("x-amz-content-sha256", "content-md5", "content-type", "x-amz-rename-source"):
        if extra not in [name.decode().lower() for name, _ in request.headers]:
            yield f"add {extra}", request.with_header(extra, hashlib.sha256(b"").hexdigest().encode()), "AccessDenied"
    yield "and a header too", request.with_header("authorization", b"AWS4-HMAC-SHA256 x"), "InvalidArgument"
    for name, value in request.headers:
        if name.lower() != b"host":
            yield f"drop {name!r}", request.without_header(name.decode().lower()), MISMATCH
            yield f"change {name!r}", request.with_header(name.decode().lower(), value + b"x"), MISMATCH


def test_no_changed_url_is_accepted(genuine: list[Request]) -> None:
    tried, wrong = 0, []
    for request in genuine:
        for mutants in (_parameter_mutants, _credential_mutants, _time_mutants, _other_mutants):
            for what, mutant, code in mutants(request):
                tried += 1
                try:
                    serve(mutant)
                    wrong.append((what, "passed"))
                except CallerError as error:
                    if code not in ("any", error.code):
                        wrong.append((what, f"{error} where {code} was due"))
    assert wrong == []
    assert tried >= 900


def test_a_copy_source_cannot_be_added_to_a_presigned_put(client: Boto3) -> None:
    # CVE-2026-97731: unsigned, it read any bucket.
    request = client.presign("put_object", Bucket="bucket", Key="key")
    for name in ("x-amz-copy-source", "X-Amz-Copy-Source", "x-amz-rename-source"):
        error = refusal(request.with_header(name, b"/other/secret"))
        assert (error.code, error.elements["HeadersNotSigned"]) == ("AccessDenied", name.lower())


@pytest.mark.parametrize("kind", ["STREAMING-UNSIGNED-PAYLOAD-TRAILER", "UNSIGNED-PAYLOAD"])
def test_credentials_in_the_query_do_not_stand_in_for_a_signature(kind: str) -> None:
    # CVE-2026-41145: a credential in the query of an unsigned-trailer upload once was enough.
    headers = {"x-amz-content-sha256": kind, "x-amz-decoded-content-length": "5"}
    request = presigned_by_hand("PUT", "https://store.example/b/k", b"5\r\nhello\r\n0\r\n\r\n", headers, kind)
    parts = parts_of(request)
    assert refusal(with_parts(request, {**parts, b"X-Amz-Signature": b"0" * 64})).code == MISMATCH
    del parts[b"X-Amz-Signature"]
    assert refusal(with_parts(request, parts)).code == MALFORMED
    alone = {b"X-Amz-Credential": parts[b"X-Amz-Credential"]}
    assert refusal(with_parts(request, alone)).code == MALFORMED


def test_an_upload_in_chunks_can_be_presigned_and_keeps_every_promise() -> None:
    headers = {"x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "x-amz-decoded-content-length": "5"}
    headers["x-amz-trailer"] = "x-amz-checksum-crc32"
    body = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n"
    request = presigned_by_hand("PUT", "https://store.example/b/k", body, headers, headers["x-amz-content-sha256"])
    assert serve(request).checksums == {"x-amz-checksum-crc32": "NhCmhg=="}
    assert refusal(replace(request, body=body.replace(b"hello", b"hallo"))).code == "BadDigest"
    assert refusal(replace(request, body=body[:-30])).code in ("IncompleteBody", "InvalidRequest")
    chunked = signed_in_chunks([b"one", b"two"], presigned=True)
    assert serve(chunked).length == 6
    assert refusal(replace(chunked, body=chunked.body.replace(b"two", b"too"))).code == MISMATCH


def test_a_payload_hash_in_the_query_is_held_to() -> None:
    digest = hashlib.sha256(b"hello").hexdigest()
    request = presigned_by_hand("PUT", f"https://store.example/b/k?X-Amz-Content-Sha256={digest}", b"hello", payload=digest)
    serve(request)
    assert refusal(replace(request, body=b"other")).code == "XAmzContentSHA256Mismatch"
    assert refusal(request.with_header("x-amz-content-sha256", b"UNSIGNED-PAYLOAD")).code == "AccessDenied"
    unsigned = "https://store.example/b/k?X-Amz-Content-Sha256=UNSIGNED-PAYLOAD"
    serve(presigned_by_hand("PUT", unsigned, b"hello"))


def test_a_parameter_can_stand_for_a_signed_header_as_javascript_writes_it() -> None:
    url = "https://store.example/b/k?x-amz-meta-a=B%20%20c&x-amz-tagging=d%3De&X-Amz-Acl=private"
    request = presigned_by_hand("PUT", url, b"hello")
    signed = sigv4.parse(request.method, request.path, request.query, request.headers, request.now, REGION)
    assert (signed.headers["x-amz-meta-a"], signed.headers["x-amz-tagging"]) == ("B c", "d=e")
    assert (b"x-amz-meta-a", b"B  c") in signed.from_query
    assert {"x-amz-meta-a", "x-amz-tagging", "X-Amz-Acl"} <= signed.spent
    serve(request)


def test_a_parameter_that_stands_for_a_header_comes_once_and_as_a_header_could() -> None:
    twice = presigned_by_hand("PUT", "https://store.example/b/k?x-amz-meta-a=1&X-Amz-Meta-A=2")
    both = presigned_by_hand("PUT", "https://store.example/b/k?x-amz-meta-a=1", headers={"x-amz-meta-a": "1"})
    broken = presigned_by_hand("PUT", "https://store.example/b/k?x-amz-meta-a=1%0D%0AX%3A2")
    assert [refusal(request).code for request in (twice, both, broken)] == [MALFORMED] * 3


def test_with_a_header_signature_a_parameter_is_never_a_header() -> None:
    request = signed_by_hand("PUT", "https://store.example/b/k?x-amz-copy-source=%2Fother%2Fkey")
    signed = sigv4.parse(request.method, request.path, request.query, request.headers, request.now, REGION)
    assert "x-amz-copy-source" not in signed.headers
    assert signed.spent == frozenset()


def test_a_checksum_in_the_query_is_held_to_unless_it_is_that_of_no_body_yet() -> None:
    # The AWS SDK for JavaScript signs the URL, and the CRC32 of nothing in it, before there is a body.
    empty = "x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32"
    serve(presigned_by_hand("PUT", f"https://store.example/b/k?{empty}", b"hello"))
    serve(presigned_by_hand("PUT", "https://store.example/b/k?x-amz-checksum-crc32=NhCmhg%3D%3D", b"hello"))
    other = presigned_by_hand("PUT", "https://store.example/b/k?x-amz-checksum-crc32=NhCmhg%3D%3D", b"other")
    assert refusal(other).code == "BadDigest"


def test_a_signed_md5_holds_the_body(client: Boto3) -> None:
    md5 = b64encode(hashlib.md5(b"hello").digest()).decode()
    request = client.presign("put_object", b"hello", Bucket="b", Key="k", ContentMD5=md5)
    assert refusal(request).code == MISMATCH  # the URL says that the header comes with it
    serve(request.with_header("content-md5", md5.encode()))
    assert refusal(replace(request, body=b"other").with_header("content-md5", md5.encode())).code == "BadDigest"


def test_version_2_is_refused_clearly() -> None:
    old = Boto3("https://store.example", signature_version="s3")
    url = old.client.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"})
    path, _, query = url.removeprefix("https://store.example").partition("?")
    request = replace(signed_by_hand("GET", "https://store.example/b/k"), path=path.encode(), query=query.encode())
    error = refusal(request.without_header("authorization"))
    assert (error.code, "Version 2" in error.message) == ("InvalidRequest", True)


def test_a_mismatch_shows_the_canonical_request_and_no_token() -> None:
    request = presigned_by_hand("GET", "https://store.example/b/k?X-Amz-Security-Token=hush&a=b")
    error = refusal(replace(request, method="PUT"))
    assert "hush" not in repr(error.args)
    assert "X-Amz-Security-Token=(not shown)" in error.elements["CanonicalRequest"]
    assert "a=b" in error.elements["CanonicalRequest"]
    assert error.elements["AWSAccessKeyId"] == KEY
