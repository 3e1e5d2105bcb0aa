"""The header mechanism of SigV4: genuine requests pass, every change to one is refused with the code that S3 gives."""

from __future__ import annotations

import hashlib
import io
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from signed_requests import (
    EMPTY_SHA256,
    KEY,
    OTHER_KEY,
    REGION,
    SECRET,
    Boto3,
    Request,
    as_bytes,
    refusal,
    serve,
    signed_by_hand,
)
from tidings.access import sigv4
from tidings.errors import CallerError


@pytest.fixture(scope="module")
def https() -> Boto3:
    return Boto3("https://store.example:9000")


@pytest.fixture(scope="module")
def http() -> Boto3:
    return Boto3("http://127.0.0.1:9000")


AWKWARD_KEYS = [
    "plain",
    "with space",
    "plus+and%percent",
    "%2B%20",
    "ünïcödé/日本語/🦆",
    "nbsp\u00a0and\u0085nel",
    "a//b///c//",
    "../up/./here/..",
    "/leading/slash",
    "trailing/",
    "~tilde*star!'()",
    'q?u=e&r#y;x:@$,[]|\\^`{}"<>',
    "back\\slash\tand\ttab",
    "x" * 1000,
]


@pytest.mark.parametrize("key", AWKWARD_KEYS)
@pytest.mark.parametrize("endpoint", ["https", "http"])
def test_a_genuine_put_passes_whatever_its_key_is(endpoint: str, key: str, https: Boto3, http: Boto3) -> None:
    client = {"https": https, "http": http}[endpoint]
    payload = serve(client.sign("put_object", Bucket="bucket", Key=key, Body=b"hello"))
    assert payload.md5_hex == hashlib.md5(b"hello").hexdigest()
    assert payload.checksums == {"x-amz-checksum-crc32": "NhCmhg=="}


@given(key=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60), value=st.text("ab +%/é&=~*"))
@settings(max_examples=150, deadline=None)
def test_any_key_and_any_query_value_pass_as_botocore_signs_them(key: str, value: str) -> None:
    query = f"?prefix={quote(value, safe='-_.~')}&list-type=2&delimiter="
    serve(signed_by_hand("GET", f"http://store.example/bucket/{quote(key, safe='/~')}{query}"))


def _calls() -> dict[str, tuple[str, dict[str, Any]]]:
    one = {"Bucket": "bucket", "Key": "key"}
    topic = {"Id": "1", "TopicArn": "arn:gcp:pubsub::project:topic", "Events": ["s3:ObjectCreated:*"]}
    return {
        "list buckets": ("list_buckets", {}),
        "create bucket": ("create_bucket", {"Bucket": "bucket"}),
        "list": ("list_objects_v2", {"Bucket": "bucket", "Prefix": "a b+c/ü", "Delimiter": "/", "StartAfter": "~*"}),
        "list versions": ("list_object_versions", {"Bucket": "bucket", "KeyMarker": "", "Prefix": "a=b&c"}),
        "get": ("get_object", {**one, "Range": "bytes=0-9", "IfMatch": '"abc"', "ResponseContentType": "a/b; c=d"}),
        "head": ("head_object", one),
        "delete": ("delete_object", one),
        "delete many": ("delete_objects", {"Bucket": "bucket", "Delete": {"Objects": [{"Key": "a&b"}]}}),
        "copy": ("copy_object", {**one, "CopySource": "bucket/with space+ü"}),
        "get notification": ("get_bucket_notification_configuration", {"Bucket": "bucket"}),
        "put notification": (
            "put_bucket_notification_configuration",
            {"Bucket": "bucket", "NotificationConfiguration": {"TopicConfigurations": [topic]}},
        ),
        "metadata": ("put_object", {**one, "Body": b"x", "Metadata": {"a": "1", "b": "two   spaces", "c": ""}}),
        "content headers": (
            "put_object",
            {**one, "Body": b"x", "ContentType": "text/html; charset=utf-8", "CacheControl": "no-cache"},
        ),
        "content encoding": ("put_object", {**one, "Body": b"x", "ContentEncoding": "gzip"}),
        "md5": ("put_object", {**one, "Body": b"hello", "ContentMD5": "XUFAKrxLKna5cZ2REBfFkg=="}),
        "empty body": ("put_object", {**one, "Body": b""}),
        "no body": ("put_object", one),
        "multipart": ("create_multipart_upload", {**one, "ChecksumAlgorithm": "SHA256"}),
        "own checksum": ("put_object", {**one, "Body": b"hello", "ChecksumCRC32": "NhCmhg=="}),
        **{
            f"checksum {name}": ("put_object", {**one, "Body": b"hello", "ChecksumAlgorithm": name})
            for name in ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")
        },
    }


@pytest.mark.parametrize("call", _calls())
@pytest.mark.parametrize("endpoint", ["https", "http"])
def test_genuine_calls_of_every_kind_pass(endpoint: str, call: str, https: Boto3, http: Boto3) -> None:
    client = {"https": https, "http": http}[endpoint]
    operation, arguments = _calls()[call]
    serve(client.sign(operation, **arguments))


@pytest.mark.parametrize("size", [0, 1, 1024 * 1024, 2 * 1024 * 1024 + 17])
def test_a_streamed_body_passes_in_aws_chunks_over_https_and_whole_over_http(size: int, https: Boto3, http: Boto3) -> None:
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    kinds = []
    for client in (https, http):
        request = client.sign("put_object", Bucket="bucket", Key="key", Body=io.BytesIO(body))
        kinds.append(request.header("x-amz-content-sha256"))
        payload = serve(request)
        assert (payload.length, payload.md5_hex) == (size, hashlib.md5(body).hexdigest())
    assert kinds == [b"STREAMING-UNSIGNED-PAYLOAD-TRAILER", hashlib.sha256(body).hexdigest().encode()]


def test_an_unsigned_payload_passes() -> None:
    client = Boto3("https://store.example", s3={"payload_signing_enabled": False}, request_checksum_calculation="when_required")
    request = client.sign("put_object", Bucket="bucket", Key="key", Body=b"hello")
    assert request.header("x-amz-content-sha256") == b"UNSIGNED-PAYLOAD"
    assert serve(request).length == 5


def test_a_default_port_and_a_host_in_capitals_pass_as_clients_send_them() -> None:
    serve(signed_by_hand("GET", "https://store.example:443/bucket/key").with_header("host", b"store.example"))


def test_the_date_header_serves_where_there_is_no_x_amz_date() -> None:
    request = AWSRequest(method="GET", url="http://store.example/b/k", headers={"Date": "to be replaced"})
    S3SigV4Auth(Credentials(KEY, SECRET), "s3", REGION).add_auth(request)
    headers = (*((as_bytes(name), as_bytes(value)) for name, value in request.headers.items()), (b"Host", b"store.example"))
    arrived = Request("GET", b"/b/k", b"", headers, b"", datetime.now(UTC))
    assert b"date;host" in arrived.header("authorization")
    serve(arrived)
    assert refusal(arrived.with_authorization(b"date;host", b"host")).elements["HeadersNotSigned"] == "date"


def test_repeated_headers_are_joined_with_a_comma() -> None:
    request = signed_by_hand("GET", "http://store.example/b/k", headers={"x-amz-meta-list": "one,two  three"})
    split = request.without_header("x-amz-meta-list")
    serve(replace(split, headers=((b"X-Amz-Meta-List", b" one "), *split.headers, (b"x-amz-meta-list", b"two three\t"))))


def test_utf8_in_a_header_is_signed_byte_for_byte() -> None:
    # U+00E0 ends in the byte 0xA0 in UTF-8, which is white space for a str of latin-1.
    serve(signed_by_hand("PUT", "http://store.example/b/k", headers={"Content-Disposition": 'filename="voil\u00e0.txt"'}))


@pytest.mark.parametrize(
    ("sent", "signed"),
    [
        (b"/b/a+b*c", "/b/a%2Bb%2Ac"),
        (b"/b/%7etilde", "/b/~tilde"),
        (b"/b/a%2fb", "/b/a/b"),
        (b"/b/\xc3\xbc", "/b/%C3%BC"),
    ],
)
def test_a_path_sent_in_another_encoding_of_the_same_key_passes(sent: bytes, signed: str) -> None:
    serve(replace(signed_by_hand("GET", f"http://store.example{signed}"), path=sent))


def test_a_plus_in_the_query_is_a_space_for_the_signature_as_for_the_reader() -> None:
    request = signed_by_hand("GET", "http://store.example/b?prefix=a%20b")
    serve(replace(request, query=b"prefix=a+b"))
    assert refusal(replace(request, query=b"prefix=a%2Bb")).code == "SignatureDoesNotMatch"


AWS_KEY, AWS_SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize(
    ("method", "path", "query", "extra", "signature"),
    [
        (
            "GET",
            b"/test.txt",
            b"",
            {"range": "bytes=0-9"},
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            b"/test$file.text",
            b"",
            {
                "date": "Fri, 24 May 2013 00:00:00 GMT",
                "x-amz-storage-class": "REDUCED_REDUNDANCY",
                "x-amz-content-sha256": hashlib.sha256(b"Welcome to Amazon S3.").hexdigest(),
            },
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        ("GET", b"/", b"lifecycle", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("GET", b"/", b"prefix=J&max-keys=2", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_the_examples_of_the_aws_documentation_pass(
    method: str, path: bytes, query: bytes, extra: dict[str, str], signature: str
) -> None:
    headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "x-amz-content-sha256": EMPTY_SHA256,
        "x-amz-date": "20130524T000000Z",
        **extra,
    }
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={AWS_KEY}/20130524/us-east-1/s3/aws4_request,"
        f"SignedHeaders={';'.join(sorted(headers))},Signature={signature}"
    )
    pairs = [(name.encode(), value.encode()) for name, value in {**headers, "authorization": authorization}.items()]
    signed = sigv4.parse(method, path, query, pairs, datetime(2013, 5, 24, 0, 5, tzinfo=UTC), "us-east-1")
    context = sigv4.verify(signed, AWS_SECRET)
    assert context.seed_signature == signature
    assert context.scope == "20130524/us-east-1/s3/aws4_request"


Mutant = tuple[str, Request, str]
"""What was changed, the changed request, and the S3 code that it must be refused with."""


def _header_mutants(request: Request) -> Iterator[Mutant]:
    mismatch = "SignatureDoesNotMatch"
    dropped = {"x-amz-date": "AccessDenied"}
    doubled = {"x-amz-date": "AccessDenied", "x-amz-content-sha256": "InvalidRequest"}
    covered = {name for name in request.signed_names if name.startswith("x-amz-")} | {
        "host",
        "content-type",
        "content-md5",
    }
    signed_list = ";".join(request.signed_names).encode()
    for name in request.signed_names:
        value = request.header(name)
        yield f"drop {name}", request.without_header(name), dropped.get(name, mismatch)
        twice = replace(request, headers=(*request.headers, (name.encode(), value)))
        yield f"double {name}", twice, doubled.get(name, mismatch)
        emptied = request.with_header(name, b"")
        yield f"empty {name}", emptied, doubled.get(name, mismatch)
        longer = request.with_header(name, value + b"0")
        yield f"append to {name}", longer, doubled.get(name, mismatch)
        swapped = value.swapcase()
        if swapped != value:
            yield f"case of {name}", request.with_header(name, swapped), doubled.get(name, mismatch)
        names = [other for other in request.signed_names if other != name]
        unsigned = request.with_authorization(signed_list, ";".join(names).encode())
        yield f"unsign {name}", unsigned, "AccessDenied" if name in covered else mismatch
    for extra in ("x-amz-copy-source", "x-amz-acl", "x-amz-meta-new", "x-amz-security-token", "X-AMZ-Tagging"):
        yield f"add {extra}", request.with_header(extra, b"/other/key"), "AccessDenied"
    for extra in ("content-type", "content-md5"):
        if extra not in request.signed_names:
            yield f"add {extra}", request.with_header(extra, b"text/plain"), "AccessDenied"


def _authorization_mutants(request: Request) -> Iterator[Mutant]:
    malformed = "AuthorizationHeaderMalformed"
    value = request.header("authorization")
    head, _, signature = value.partition(b"Signature=")
    scope = value.partition(b"Credential=")[2].partition(b",")[0]
    key, date, region, _, terminator = scope.split(b"/")
    names = ";".join(request.signed_names).encode()
    yield "no authorization", request.without_header("authorization"), "AccessDenied"
    yield "two authorizations", replace(request, headers=(*request.headers, (b"authorization", value))), malformed
    for text in (
        b"AWS4-HMAC-SHA256",
        b"AWS4-HMAC-SHA256 ",
        head,
        head[:40],
        value + b",",
        value + b" x",
        value + b", X=1",
    ):
        yield f"authorization {text!r}", request.with_header("authorization", text), malformed
    for text in (b"", b"Bearer abc", b"AWS key:signature", b"AWS4-ECDSA-P256-SHA256 " + value[17:], value.lower()):
        yield f"mechanism {text!r}", request.with_header("authorization", text), "InvalidRequest"
    for at in range(0, 64, 5):
        flipped = signature[:at] + (b"0" if signature[at : at + 1] != b"0" else b"1") + signature[at + 1 :]
        yield (
            f"signature digit {at}",
            request.with_header("authorization", head + b"Signature=" + flipped),
            ("SignatureDoesNotMatch"),
        )
    for text in (b"", signature[:-1], signature + b"0", signature.upper() + b"", b"g" * 64, b"\xff" * 64):
        if text != signature:
            yield f"signature {text!r}", request.with_header("authorization", head + b"Signature=" + text), malformed
    for wrong in (b"", b"us-east-1", REGION.upper().encode(), b"*"):
        yield f"region {wrong!r}", request.with_authorization(region + b"/s3", wrong + b"/s3"), malformed
    for wrong in (b"", b"S3", b"sqs", b"s3-object-lambda"):
        yield f"service {wrong!r}", request.with_authorization(b"/s3/", b"/" + wrong + b"/"), malformed
    for wrong in (b"", b"aws4", b"AWS4_REQUEST", b"aws4_request/aws4_request"):
        yield f"terminator {wrong!r}", request.with_authorization(b"/" + terminator, b"/" + wrong), malformed
    for wrong in (b"", b"20000101", date[:7], date + b"0", b"today"):
        yield f"scope date {wrong!r}", request.with_authorization(date, wrong), malformed
    yield "another tenant's key", request.with_authorization(key, OTHER_KEY.encode()), "SignatureDoesNotMatch"
    yield "unknown key", request.with_authorization(key, key + b"X"), "InvalidAccessKeyId"
    for wrong in (b"", b"a/b", b"k" * 129, b"k\xc3\xbc"):
        yield f"key {wrong!r}", request.with_authorization(key, wrong), malformed
    for wrong in (b"", b";", names.upper(), names + b";", names + b";host", b"host;" + names, b"x-amz-date;host"):
        yield f"signed headers {wrong!r}", request.with_authorization(names, wrong), malformed
    yield (
        "a signed header that is not there",
        request.with_authorization(names, names + b";zzz"),
        "SignatureDoesNotMatch",
    )


def _target_mutants(request: Request) -> Iterator[Mutant]:
    mismatch = "SignatureDoesNotMatch"
    for method in {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", request.method.lower()} - {request.method}:
        yield f"method {method}", replace(request, method=method), mismatch
    path = request.path
    for wrong in (
        path + b"x",
        path + b"/",
        b"/" + path,
        path + b"/.",
        path + b"/../",
        path[:-1] or b"//",
        path.upper(),
        path.replace(b"%", b"%25"),
        path + b"%00",
        path + b"%2E",
        path.replace(b"/", b"//"),
        path + b";v=1",
    ):
        if wrong != path:
            yield f"path {wrong!r}", replace(request, path=wrong), mismatch
    for wrong in (path + b"%", path + b"%zz", path + b"%u0041", b"", path[1:], b"http://store.example" + path):
        yield f"path {wrong!r}", replace(request, path=wrong), "InvalidURI"
    for more in (b"acl", b"uploads=", b"versionId=1", b"x=%00", b"=", b"=x", b"Notification"):
        yield f"add {more!r}", replace(request, query=b"&".join(filter(None, [request.query, more]))), mismatch
    yield "broken query", replace(request, query=request.query + b"&a=%4"), "InvalidURI"
    for name in (b"X-Amz-Signature", b"X-Amz-Credential", b"x-amz-algorithm", b"X-Amz%2DSignature", b"Signature"):
        both = replace(request, query=b"&".join(filter(None, [request.query, name + b"=1"])))
        yield f"also {name!r}", both, "InvalidArgument"
        version_2 = "InvalidRequest" if name == b"Signature" else "AuthorizationQueryParametersError"
        yield f"only {name!r}", both.without_header("authorization"), version_2
    parts = request.query.split(b"&") if request.query else []
    for part in parts:
        rest = [other for other in parts if other != part]
        yield f"drop {part!r}", replace(request, query=b"&".join(rest)), mismatch
        yield f"change {part!r}", replace(request, query=b"&".join([*rest, part + b"x"])), mismatch
        yield f"case of {part!r}", replace(request, query=b"&".join([*rest, part.swapcase()])), mismatch
        yield f"double {part!r}", replace(request, query=b"&".join([*parts, part])), "InvalidArgument"


def _clock_mutants(request: Request) -> Iterator[Mutant]:
    for minutes in (-15.02, 15.02, -60, 60, 60 * 24 * 365):
        yield (
            f"{minutes} minutes",
            replace(request, now=request.now + timedelta(minutes=minutes)),
            "RequestTimeTooSkewed",
        )
    for seconds in (-1, 1):
        moved = (request.now + timedelta(seconds=seconds)).strftime("%Y%m%dT%H%M%SZ")
        same_day = moved[:8] == request.header("x-amz-date").decode()[:8]
        code = "SignatureDoesNotMatch" if same_day else "AuthorizationHeaderMalformed"
        yield f"date moved by {seconds} s", request.with_header("x-amz-date", moved.encode()), code
    other_day = (request.now + timedelta(days=1)).strftime("%Y%m%dT%H%M%SZ").encode()
    yield "date of another day", request.with_header("x-amz-date", other_day), "AuthorizationHeaderMalformed"
    for text in (
        b"yesterday",
        b"20130524",
        b"2013-05-24T00:00:00Z",
        b"20131324T000000Z",
        b"20130524T000000",
        b"0" * 15 + b"Z",
    ):
        yield f"date {text!r}", request.with_header("x-amz-date", text), "AccessDenied"


def _body_mutants(request: Request) -> Iterator[tuple[str, Request, set[str]]]:
    hashed = request.header("x-amz-content-sha256") != b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    whole = {"XAmzContentSHA256Mismatch", "IncompleteBody"}
    codes = whole if hashed else {"BadDigest", "InvalidRequest", "IncompleteBody"}
    body = request.body
    for at in range(0, len(body), max(1, len(body) // 20)):
        flipped = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        yield f"body byte {at}", replace(request, body=flipped), codes
        # What may be missing is the blank line at the very end: it says nothing.
        if at < len(body) - 2:
            yield f"body cut at {at}", replace(request, body=body[:at]), codes
    yield "body longer", replace(request, body=body + b"x"), codes
    yield "body twice", replace(request, body=body + body + b"x"), codes


@pytest.fixture(scope="module")
def genuine(https: Boto3, http: Boto3) -> list[Request]:
    one = {"Bucket": "bucket", "Key": "a b/ü%key"}
    return [
        https.sign("put_object", **one, Body=b"hello hello", ContentType="text/plain", Metadata={"a": "B c"}),
        http.sign(
            "put_object",
            **one,
            Body=b"hello hello",
            ContentMD5=b64encode(hashlib.md5(b"hello hello").digest()).decode(),
        ),
        https.sign("get_object", Bucket="bucket", Key="key"),
        https.sign("list_objects_v2", Bucket="bucket", Prefix="a b", Delimiter="/"),
        http.sign("put_bucket_notification_configuration", Bucket="bucket", NotificationConfiguration={}),
    ]


@pytest.mark.parametrize(
    ("mutants", "at_least"),
    [(_header_mutants, 150), (_authorization_mutants, 200), (_target_mutants, 150), (_clock_mutants, 60)],
)
def test_every_change_to_a_signed_request_is_refused_with_its_code(
    mutants: Callable[[Request], Iterator[Mutant]], at_least: int, genuine: list[Request]
) -> None:
    wrong, tried = [], 0
    for request in genuine:
        serve(request)
        for what, mutant, code in mutants(request):
            tried += 1
            try:
                serve(mutant)
                wrong.append((what, "passed"))
            except CallerError as error:
                if error.code != code:
                    wrong.append((what, f"{error} where {code} was due"))
    assert wrong == []
    assert tried >= at_least


def test_every_change_to_the_body_is_refused(genuine: list[Request]) -> None:
    with_body = [request for request in genuine if request.body]
    mutants = [mutant for request in with_body for mutant in _body_mutants(request)]
    assert len(mutants) >= 80
    assert [(what, refusal(mutant).code) for what, mutant, codes in mutants if refusal(mutant).code not in codes] == []


def test_a_request_is_good_for_fifteen_minutes_on_both_sides(genuine: list[Request]) -> None:
    for minutes in (-15, 15):
        serve(replace(genuine[0], now=genuine[0].now + timedelta(minutes=minutes)))


def test_a_mismatch_shows_what_was_signed_here_and_never_the_secret(genuine: list[Request]) -> None:
    error = refusal(replace(genuine[2], path=b"/bucket/other"))
    assert set(error.elements) == {"AWSAccessKeyId", "SignatureProvided", "StringToSign", "CanonicalRequest"}
    assert error.elements["AWSAccessKeyId"] == KEY
    assert error.elements["CanonicalRequest"].startswith("GET\n/bucket/other\n\nhost:store.example:9000\n")
    assert error.elements["CanonicalRequest"].endswith(EMPTY_SHA256)
    digest = hashlib.sha256(error.elements["CanonicalRequest"].encode()).hexdigest()
    assert error.elements["StringToSign"].endswith(f"/{REGION}/s3/aws4_request\n{digest}")
    assert error.status == 403


def test_a_mismatch_does_not_repeat_the_secrets_that_headers_carry() -> None:
    secrets = {"x-amz-security-token": "hush-1", "x-amz-server-side-encryption-customer-key": "hush-2"}
    request = signed_by_hand("GET", "http://store.example/b/k", headers=secrets)
    error = refusal(replace(request, method="PUT"))
    assert "hush" not in repr(error.args)
    assert "x-amz-security-token:(not shown)\n" in error.elements["CanonicalRequest"]


@pytest.mark.parametrize("value", [b"Bearer hush", b"Basic aHVzaDpodXNo", b"AWS hush:hush", b"AWS4-HMAC-SHA256 hush"])
def test_what_another_mechanism_sends_is_not_repeated(value: bytes, genuine: list[Request]) -> None:
    error = refusal(genuine[0].with_header("authorization", value))
    assert b"hush" not in repr(error.args).encode()
    assert b"aHVzaD" not in repr(error.args).encode()


def test_the_wrong_region_is_answered_with_the_right_one(genuine: list[Request]) -> None:
    error = refusal(genuine[0].with_authorization(REGION.encode() + b"/s3", b"us-east-1/s3"))
    assert error.elements == {"Region": REGION}
    assert REGION in error.message


def test_a_skewed_clock_is_told_both_times(genuine: list[Request]) -> None:
    error = refusal(replace(genuine[0], now=datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)))
    assert error.elements["ServerTime"] == "20010203T040506Z"
    assert error.elements["RequestTime"] == genuine[0].header("x-amz-date").decode()


def test_unsigned_headers_are_named(genuine: list[Request]) -> None:
    request = genuine[0].with_header("x-amz-copy-source", b"/other/key").with_header("x-amz-acl", b"public-read")
    assert refusal(request).elements["HeadersNotSigned"] == "x-amz-acl, x-amz-copy-source"


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "NotImplemented"),
        ("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER", "NotImplemented"),
        ("STREAMING-SOMETHING", "InvalidRequest"),
        ("unsigned-payload", "InvalidRequest"),
        (EMPTY_SHA256.upper(), "InvalidRequest"),
        (EMPTY_SHA256[:-1], "InvalidRequest"),
        ("None", "InvalidRequest"),
        ("", "InvalidRequest"),
    ],
)
def test_other_kinds_of_payload_are_refused_by_name(value: str, code: str, genuine: list[Request]) -> None:
    error = refusal(genuine[0].with_header("x-amz-content-sha256", value.encode()))
    assert error.code == code
    assert repr(value) in error.message


def test_a_payload_hash_is_required_even_where_it_is_not_signed() -> None:
    request = signed_by_hand("GET", "http://store.example/b/k").without_header("x-amz-content-sha256")
    error = refusal(request.with_authorization(b"x-amz-content-sha256;", b""))
    assert error.code == "InvalidRequest"
    assert "x-amz-content-sha256" in error.message


def test_an_unsigned_trailer_upload_needs_a_valid_signature(genuine: list[Request]) -> None:
    # CVE-2025-31489: a body of this kind once passed with any signature at all.
    request = genuine[0]
    assert request.header("x-amz-content-sha256") == b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    head = request.header("authorization").partition(b"Signature=")[0]
    assert refusal(request.with_header("authorization", head + b"Signature=" + b"0" * 64)).code == "SignatureDoesNotMatch"
    assert refusal(request.without_header("authorization")).code == "AccessDenied"


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_garbage_is_a_refusal_and_never_a_failure_of_ours(data: st.DataObject) -> None:
    request = signed_by_hand("PUT", "http://store.example/b/k?a=b", b"body", {"Content-Type": "a/b"})
    garbage = st.binary(max_size=60) | st.sampled_from([b"Fri, 24 May 2013 00:00:00 +9999999999999999", b"99 99 99:99:99 9"])
    name = data.draw(st.sampled_from(["path", "query", "date", "authorization", *request.signed_names]))
    wrong = data.draw(garbage)
    if name in ("path", "query"):
        request = replace(request, path=wrong) if name == "path" else replace(request, query=wrong)
    elif name == "date":
        request = request.without_header("x-amz-date").with_header("date", wrong)
    else:
        request = request.with_header(name, request.header(name) + wrong if data.draw(st.booleans()) else wrong)
    with suppress(CallerError):
        serve(request)


def test_a_changed_secret_is_not_met_by_a_key_from_the_cache(genuine: list[Request]) -> None:
    request = genuine[2]
    signed = sigv4.parse(request.method, request.path, request.query, request.headers, request.now, REGION)
    sigv4.verify(signed, SECRET)
    with pytest.raises(CallerError):
        sigv4.verify(signed, SECRET + "x")
    sigv4.verify(signed, SECRET)


def test_values_do_not_print_what_is_secret(genuine: list[Request]) -> None:
    request = genuine[2]
    signed = sigv4.parse(request.method, request.path, request.query, request.headers, request.now, REGION)
    context = sigv4.verify(signed, SECRET)
    assert repr(context.signing_key) not in repr(context)
    assert SECRET not in repr((signed, context))
