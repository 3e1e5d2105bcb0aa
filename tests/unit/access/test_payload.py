"""The body: every framing, every promise, every cut."""

from __future__ import annotations

import hashlib
import hmac
import io
from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime
from zlib import crc32

import pytest
from botocore.httpchecksum import _CHECKSUM_CLS, AwsChunkedWrapper
from hypothesis import given
from hypothesis import strategies as st

from tidings.access import payload as body_of
from tidings.access import sigv4
from tidings.access.payload import Payload, decoder_for
from tidings.access.sigv4 import PayloadKind, SigningContext
from tidings.errors import STATUS, CallerError

SIGNING_KEY = b"k" * 32
SEED = "5" * 64
STAMP, SCOPE = "20260102T030405Z", "20260102/eu-test-1/s3/aws4_request"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()

splits = st.lists(st.integers(1, 40), max_size=60)
chunks_of_data = st.lists(st.binary(min_size=1, max_size=80), max_size=5)


def context(kind: PayloadKind, payload_hash: str | None = None) -> SigningContext:
    return SigningContext("KEY", SIGNING_KEY, SEED, STAMP, SCOPE, kind, payload_hash or kind.value or EMPTY_SHA256)


def hashed(body: bytes) -> SigningContext:
    return context(PayloadKind.HASHED, hashlib.sha256(body).hexdigest())


def cut(body: bytes, sizes: Iterable[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(body[at : at + size])
        at += size
    return [*pieces, body[at:]]


def run(payload: Payload, body: bytes, sizes: Iterable[int] = ()) -> bytes:
    decoded = b"".join([payload.feed(piece) for piece in cut(body, sizes)])
    payload.finish()
    return decoded


def refused(code: str, signing: SigningContext, headers: dict[str, str], body: bytes) -> CallerError:
    """The refusal, which is the same for the body in one piece and byte by byte."""
    errors = []
    for sizes in ([], [1] * len(body)):
        with pytest.raises(CallerError) as caught:
            run(decoder_for(signing, headers), body, sizes)
        errors.append(caught.value)
    assert [error.code for error in errors] == [code, code]
    assert code in STATUS
    assert SIGNING_KEY.decode() not in repr(errors[0].args)
    return errors[0]


class Signer:
    """aws-chunked with signatures, written from "Signature Calculations for the Authorization Header: Transferring
    Payload in Multiple Chunks" of the S3 API reference, and from its page on trailing headers."""

    def __init__(self, key: bytes = SIGNING_KEY, seed: str = SEED) -> None:
        self.key, self.previous = key, seed

    def _sign(self, *lines: str) -> str:
        text = "\n".join([lines[0], STAMP, SCOPE, self.previous, *lines[1:]])
        self.previous = hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()
        return self.previous

    def chunk(self, data: bytes) -> bytes:
        signature = self._sign("AWS4-HMAC-SHA256-PAYLOAD", EMPTY_SHA256, hashlib.sha256(data).hexdigest())
        return b"%x;chunk-signature=%s\r\n%s\r\n" % (len(data), signature.encode(), data)

    def last(self) -> bytes:
        return self.chunk(b"")[:-2]

    def trailer(self, name: str, value: str) -> bytes:
        line = f"{name}:{value}"
        signature = self._sign("AWS4-HMAC-SHA256-TRAILER", hashlib.sha256(f"{line}\n".encode()).hexdigest())
        return f"{line}\r\nx-amz-trailer-signature:{signature}\r\n\r\n".encode()


def crc32_of(data: bytes) -> str:
    return b64encode(crc32(data).to_bytes(4, "big")).decode()


def signed_chunks(pieces: list[bytes]) -> bytes:
    signer = Signer()
    return b"".join([*(signer.chunk(piece) for piece in pieces), signer.last(), b"\r\n"])


def signed_with_trailer(pieces: list[bytes]) -> bytes:
    signer = Signer()
    trailer = crc32_of(b"".join(pieces))
    return b"".join([*map(signer.chunk, pieces), signer.last(), signer.trailer("x-amz-checksum-crc32", trailer)])


def unsigned_with_trailer(pieces: list[bytes]) -> bytes:
    chunks = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]
    return b"".join([*chunks, b"0\r\nx-amz-checksum-crc32:", crc32_of(b"".join(pieces)).encode(), b"\r\n\r\n"])


def decoded_length(pieces: list[bytes]) -> dict[str, str]:
    return {"x-amz-decoded-content-length": str(sum(map(len, pieces)))}


ENCODINGS = [
    (PayloadKind.SIGNED_CHUNKS, signed_chunks, {}),
    (PayloadKind.SIGNED_CHUNKS_TRAILER, signed_with_trailer, {"x-amz-trailer": "x-amz-checksum-crc32"}),
    (PayloadKind.UNSIGNED_TRAILER, unsigned_with_trailer, {"x-amz-trailer": "x-amz-checksum-crc32"}),
]
HELLO = [b"hello ", b"hello"]


@pytest.mark.parametrize(("kind", "encode", "extra"), ENCODINGS)
@given(pieces=chunks_of_data, sizes=splits)
def test_a_chunked_body_decodes_however_it_is_cut(kind, encode, extra, pieces, sizes) -> None:  # type: ignore[no-untyped-def]
    data = b"".join(pieces)
    payload = decoder_for(context(kind), {**decoded_length(pieces), **extra})
    assert run(payload, encode(pieces), sizes) == data
    assert (payload.length, payload.md5_hex) == (len(data), hashlib.md5(data).hexdigest())
    assert payload.checksums == ({"x-amz-checksum-crc32": crc32_of(data)} if extra else {})


@given(data=st.binary(max_size=300), sizes=splits)
def test_a_whole_body_passes_through_however_it_is_cut(data: bytes, sizes: list[int]) -> None:
    for signing in (hashed(data), context(PayloadKind.UNSIGNED)):
        headers = {
            "content-length": str(len(data)),
            "content-md5": b64encode(hashlib.md5(data).digest()).decode(),
            "x-amz-checksum-sha256": b64encode(hashlib.sha256(data).digest()).decode(),
        }
        payload = decoder_for(signing, headers)
        assert run(payload, data, sizes) == data
        assert payload.checksums == {"x-amz-checksum-sha256": headers["x-amz-checksum-sha256"]}


@pytest.mark.parametrize(("kind", "encode", "extra"), ENCODINGS)
def test_no_changed_byte_and_no_cut_passes(kind, encode, extra) -> None:  # type: ignore[no-untyped-def]
    body = encode(HELLO)
    headers = {**decoded_length(HELLO), **extra}
    assert run(decoder_for(context(kind), headers), body) == b"hello hello"
    # The blank line at the very end may be missing: it says nothing.
    broken = [body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :] for at in range(len(body))]
    broken += [body[:at] for at in range(len(body) - 2)]
    for wrong in broken:
        with pytest.raises(CallerError):
            run(decoder_for(context(kind), headers), wrong)


@pytest.mark.parametrize(("kind", "encode", "extra"), ENCODINGS)
@given(noise=st.binary(max_size=20) | st.sampled_from([b"\r\n", b"0\r\n", b":", b"5\r\n"]), at=st.integers(0), sizes=splits)
def test_noise_in_a_chunked_body_is_a_refusal_or_changes_nothing(kind, encode, extra, noise, at, sizes) -> None:  # type: ignore[no-untyped-def]
    body = encode(HELLO)
    at %= len(body)
    payload = decoder_for(context(kind), {**decoded_length(HELLO), **extra})
    try:
        decoded = run(payload, body[:at] + noise + body[at:], sizes)
    except CallerError:
        return
    assert decoded == b"hello hello"


@pytest.mark.parametrize("name", ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"])
@pytest.mark.parametrize("size", [0, 10, 4096, 10_000])
def test_the_chunks_of_botocore_decode_with_each_checksum(name: str, size: int) -> None:
    data = (bytes(range(256)) * 40)[:size]
    header = f"x-amz-checksum-{name}"
    body = AwsChunkedWrapper(io.BytesIO(data), _CHECKSUM_CLS[name], header, chunk_size=4096).read()
    headers = {"x-amz-trailer": header, "x-amz-decoded-content-length": str(size), "content-length": str(len(body))}
    payload = decoder_for(context(PayloadKind.UNSIGNED_TRAILER), headers)
    assert run(payload, body, [7] * 100) == data
    assert payload.checksums == {header: _CHECKSUM_CLS[name]().handle(data)}


AWS_CHUNKS = {
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD": (
        "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
        "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
        "\r\n",
        {"content-length": "66824"},
    ),
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER": (
        "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
        "x-amz-checksum-crc32c:sOO8/Q==\r\n"
        "x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n",
        {"x-amz-trailer": "x-amz-checksum-crc32c"},
    ),
}


@pytest.mark.parametrize("kind", AWS_CHUNKS)
def test_the_chunked_examples_of_the_aws_documentation_pass_from_the_first_byte_to_the_last(kind: str) -> None:
    seed, first, second, last, trailer, extra = AWS_CHUNKS[kind]
    headers = {
        "content-encoding": "aws-chunked",
        "host": "s3.amazonaws.com",
        "x-amz-content-sha256": kind,
        "x-amz-date": "20130524T000000Z",
        "x-amz-decoded-content-length": "66560",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
        **extra,
    }
    authorization = (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        f"SignedHeaders={';'.join(sorted(headers))},Signature={seed}"
    )
    pairs = [(name.encode(), value.encode()) for name, value in {**headers, "authorization": authorization}.items()]
    now = datetime(2013, 5, 24, tzinfo=UTC)
    signed = sigv4.parse("PUT", b"/examplebucket/chunkObject.txt", b"", pairs, now, "us-east-1")
    signing = sigv4.verify(signed, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    body = "".join(
        [
            f"10000;chunk-signature={first}\r\n{'a' * 65536}\r\n",
            f"400;chunk-signature={second}\r\n{'a' * 1024}\r\n",
            f"0;chunk-signature={last}\r\n{trailer}",
        ]
    )
    assert run(decoder_for(signing, signed.headers), body.encode(), [777] * 50) == b"a" * 66560


def test_data_passes_on_as_it_comes_and_memory_stays_bounded() -> None:
    size = 8 * 1024 * 1024
    payload = decoder_for(context(PayloadKind.UNSIGNED_TRAILER), {"x-amz-decoded-content-length": str(size)})
    assert payload.feed(b"%x\r\n" % size) == b""
    piece = bytes(65536)
    for _ in range(size // len(piece)):
        assert payload.feed(piece) is piece
    assert payload.feed(b"\r\n0\r\n\r\n") == b""
    payload.finish()
    assert payload.length == size


def test_one_unsigned_chunk_may_hold_a_large_object_as_the_go_sdk_sends_it() -> None:
    size = body_of.MAX_SIGNED_CHUNK + 1
    payload = decoder_for(context(PayloadKind.UNSIGNED_TRAILER), {"x-amz-decoded-content-length": str(size)})
    assert payload.feed(b"%x\r\n" % size + b"abc") == b"abc"


@pytest.mark.parametrize("gap", [b"", b"\r\n"])
def test_blank_lines_around_the_trailer_say_nothing(gap: bytes) -> None:
    signer = Signer()
    body = signer.chunk(b"hello") + signer.last()
    name, signature, _ = signer.trailer("x-amz-checksum-crc32", crc32_of(b"hello")).split(b"\r\n", 2)
    headers = {"x-amz-decoded-content-length": "5", "x-amz-trailer": "x-amz-checksum-crc32"}
    payload = decoder_for(context(PayloadKind.SIGNED_CHUNKS_TRAILER), headers)
    assert run(payload, body + gap + name + b"\n\r\n" + signature + b"\r\n" + gap) == b"hello"


def test_a_wrong_body_hash_is_refused_with_both_hashes() -> None:
    error = refused("XAmzContentSHA256Mismatch", hashed(b"one"), {}, b"two")
    assert error.elements["ClientComputedContentSHA256"] == hashlib.sha256(b"one").hexdigest()
    assert error.elements["S3ComputedContentSHA256"] == hashlib.sha256(b"two").hexdigest()


@pytest.mark.parametrize("length", ["4", "6", "0"])
def test_a_body_that_is_not_as_long_as_it_says_is_incomplete(length: str) -> None:
    refused("IncompleteBody", hashed(b"hello"), {"content-length": length}, b"hello")
    refused("IncompleteBody", hashed(b"hello"), {"x-amz-decoded-content-length": length}, b"hello")
    for kind, encode, extra in ENCODINGS:
        headers = {"x-amz-decoded-content-length": length, **extra}
        refused("IncompleteBody", context(kind), headers, encode([b"hello"]))


@pytest.mark.parametrize("value", ["", "-1", "+5", "5,5", "0x5", "5 5", "\u0665", "1e3", "9" * 19])
@pytest.mark.parametrize("name", ["content-length", "x-amz-decoded-content-length"])
def test_a_length_that_is_no_number_is_refused(name: str, value: str) -> None:
    assert repr(value) in refused("InvalidRequest", hashed(b"hello"), {name: value}, b"hello").message


def test_a_chunked_body_must_say_its_decoded_length() -> None:
    for kind, encode, extra in ENCODINGS:
        refused("MissingContentLength", context(kind), extra, encode(HELLO))


def test_a_wrong_content_md5_is_a_bad_digest_and_a_malformed_one_an_invalid_digest() -> None:
    right = b64encode(hashlib.md5(b"hello").digest()).decode()
    run(decoder_for(hashed(b"hello"), {"content-md5": right}), b"hello")
    other = b64encode(hashlib.md5(b"other").digest()).decode()
    assert "Content-MD5" in refused("BadDigest", hashed(b"hello"), {"content-md5": other}, b"hello").message
    for wrong in (
        "",
        "hello",
        hashlib.md5(b"hello").hexdigest(),
        right[:-1],
        right + ",",
        b64encode(b"short").decode(),
    ):
        refused("InvalidDigest", hashed(b"hello"), {"content-md5": wrong}, b"hello")


@pytest.mark.parametrize("name", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_a_wrong_checksum_is_a_bad_digest_in_header_and_trailer(name: str) -> None:
    header = f"x-amz-checksum-{name.lower()}"
    wrong = _CHECKSUM_CLS[name.lower()]().handle(b"other")
    headers = {header: wrong, "x-amz-sdk-checksum-algorithm": name}
    assert f"The {name} that" in refused("BadDigest", hashed(b"hello"), headers, b"hello").message
    headers = {"x-amz-trailer": header, "x-amz-decoded-content-length": "5"}
    body = f"5\r\nhello\r\n0\r\n{header}:{wrong}\r\n\r\n".encode()
    refused("BadDigest", context(PayloadKind.UNSIGNED_TRAILER), headers, body)


def test_a_malformed_checksum_is_refused_in_header_and_trailer() -> None:
    refused("InvalidRequest", hashed(b"hello"), {"x-amz-checksum-crc32": "hello"}, b"hello")
    headers = {"x-amz-trailer": "x-amz-checksum-crc32", "x-amz-decoded-content-length": "5"}
    body = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:hello\r\n\r\n"
    refused("InvalidRequest", context(PayloadKind.UNSIGNED_TRAILER), headers, body)


FIVE = {"x-amz-decoded-content-length": "5"}
FIVE_AND_TRAILER = {**FIVE, "x-amz-trailer": "x-amz-checksum-crc32"}
LINE = f"x-amz-checksum-crc32:{crc32_of(b'hello')}\r\n".encode()


@pytest.mark.parametrize(
    ("headers", "trailer"),
    [
        (FIVE_AND_TRAILER, b"\r\n"),
        (FIVE_AND_TRAILER, b""),
        (FIVE_AND_TRAILER, LINE + LINE + b"\r\n"),
        (FIVE_AND_TRAILER, LINE + b"x-amz-meta-late: value\r\n\r\n"),
        (FIVE_AND_TRAILER, LINE + b"x-amz-trailer-signature:" + b"0" * 64 + b"\r\n\r\n"),
        (FIVE_AND_TRAILER, LINE.replace(b"crc32", b"crc32c") + b"\r\n"),
        (FIVE_AND_TRAILER, LINE + b"\r\nno colon\r\n"),
        (FIVE_AND_TRAILER, LINE + b"\r\n5\r\nhello\r\n0\r\n\r\n"),
        (FIVE, LINE + b"\r\n"),
    ],
)
def test_a_trailer_must_be_what_was_announced(headers: dict[str, str], trailer: bytes) -> None:
    refused("InvalidRequest", context(PayloadKind.UNSIGNED_TRAILER), headers, b"5\r\nhello\r\n0\r\n" + trailer)


def test_a_trailer_is_refused_where_the_payload_has_none() -> None:
    for signing in (hashed(b"hello"), context(PayloadKind.UNSIGNED), context(PayloadKind.SIGNED_CHUNKS)):
        refused("InvalidRequest", signing, FIVE_AND_TRAILER, b"hello")
    signer = Signer()
    body = signer.chunk(b"hello") + signer.last()
    refused("InvalidRequest", context(PayloadKind.SIGNED_CHUNKS), FIVE, body + LINE + b"\r\n")


def test_a_signed_trailer_needs_its_own_signature() -> None:
    signer = Signer()
    body = signer.chunk(b"hello") + signer.last()
    kind = context(PayloadKind.SIGNED_CHUNKS_TRAILER)
    refused("SignatureDoesNotMatch", kind, FIVE_AND_TRAILER, body + LINE + b"\r\n")
    for signature in (b"", b"0" * 64, b"\xff\xfe", signer.previous.encode()):
        trailer = LINE + b"x-amz-trailer-signature:" + signature + b"\r\n\r\n"
        refused("SignatureDoesNotMatch", kind, FIVE_AND_TRAILER, body + trailer)
    good = Signer()
    good.chunk(b"hello")
    good.last()
    forged = good.trailer("x-amz-checksum-crc32", crc32_of(b"hello")).replace(b"NhCmhg==", b"AAAAAA==")
    refused("SignatureDoesNotMatch", kind, FIVE_AND_TRAILER, body + forged)


def test_chunks_may_not_be_changed_dropped_repeated_reordered_or_signed_by_another() -> None:
    signer = Signer()
    one, two, last = signer.chunk(b"one"), signer.chunk(b"two"), signer.last() + b"\r\n"
    stranger = Signer(key=b"s" * 32)
    replayed = Signer(seed="6" * 64)
    kind, headers = context(PayloadKind.SIGNED_CHUNKS), {"x-amz-decoded-content-length": "6"}
    assert run(decoder_for(kind, headers), one + two + last) == b"onetwo"
    for body in (
        one.replace(b"one", b"own") + two + last,
        two + one + last,
        one + one + last,
        one + last,
        stranger.chunk(b"one") + stranger.chunk(b"two") + stranger.last() + b"\r\n",
        replayed.chunk(b"one") + replayed.chunk(b"two") + replayed.last() + b"\r\n",
        one + two + b"0;chunk-signature=" + b"0" * 64 + b"\r\n\r\n",
        one + two + b"0;chunk-signature=" + SEED.encode() + b"\r\n\r\n",
    ):
        error = refused("SignatureDoesNotMatch", kind, headers, body)
        assert error.elements["AWSAccessKeyId"] == "KEY"
        assert error.elements["StringToSign"].startswith("AWS4-HMAC-SHA256-PAYLOAD\n")


def test_a_body_without_its_last_chunk_is_incomplete() -> None:
    signer = Signer()
    refused("IncompleteBody", context(PayloadKind.SIGNED_CHUNKS), FIVE, signer.chunk(b"hello"))
    refused("IncompleteBody", context(PayloadKind.UNSIGNED_TRAILER), FIVE, b"5\r\nhello\r\n")
    refused("IncompleteBody", context(PayloadKind.UNSIGNED_TRAILER), FIVE, b"5\r\nhel")
    refused("IncompleteBody", context(PayloadKind.UNSIGNED_TRAILER), {"x-amz-decoded-content-length": "0"}, b"")


@pytest.mark.parametrize(
    "body",
    [
        b"\r\n",
        b"hello\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"5;x=y\r\nhello\r\n0\r\n\r\n",
        b"5;chunk-signature=" + b"0" * 64 + b"\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"4\r\nhello\r\n0\r\n\r\n",
        b"0" * 17 + b"\r\n",
        b"5" * 300,
        b"\xff\xfe\r\n",
    ],
)
def test_a_body_that_is_not_chunked_as_it_should_be_is_refused(body: bytes) -> None:
    refused("InvalidRequest", context(PayloadKind.UNSIGNED_TRAILER), FIVE, body)


def test_a_signed_chunk_needs_its_signature_and_may_not_be_huge() -> None:
    kind = context(PayloadKind.SIGNED_CHUNKS)
    refused("InvalidRequest", kind, FIVE, b"5\r\nhello\r\n0\r\n\r\n")
    refused("InvalidRequest", kind, FIVE, b"5;chunk-signature=" + b"A" * 64 + b"\r\nhello\r\n")
    huge = b"%x;chunk-signature=%s\r\n" % (body_of.MAX_SIGNED_CHUNK + 1, b"0" * 64)
    assert str(body_of.MAX_SIGNED_CHUNK) in refused("InvalidRequest", kind, FIVE, huge).message


def test_an_endless_line_and_an_endless_trailer_are_refused_before_they_fill_the_memory() -> None:
    for start in (b"", b"5\r\nhello\r\n0\r\n"):
        payload = decoder_for(context(PayloadKind.UNSIGNED_TRAILER), FIVE)
        payload.feed(start)
        fed = 0
        with pytest.raises(CallerError, match="longer than"):  # noqa: PT012
            while fed < 10_000:
                payload.feed(b"a" * 100)
                fed += 100
        assert fed <= body_of.MAX_TRAILER


@pytest.mark.parametrize(
    ("kind", "headers", "body"),
    [
        (PayloadKind.UNSIGNED_TRAILER, FIVE, b"ffffffff\r\nhello more"),
        (PayloadKind.UNSIGNED, {"content-length": "5"}, b"hello more"),
    ],
)
def test_more_data_than_was_promised_is_refused_at_once(kind: PayloadKind, headers: dict[str, str], body: bytes) -> None:
    payload = decoder_for(context(kind), headers)
    with pytest.raises(CallerError) as caught:
        payload.feed(body)
    assert caught.value.code == "IncompleteBody"
