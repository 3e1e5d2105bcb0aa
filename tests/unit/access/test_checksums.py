"""The five checksums, and what a request may promise about its body."""

from __future__ import annotations

from base64 import b64encode

import pytest
from botocore.httpchecksum import _CHECKSUM_CLS
from hypothesis import given
from hypothesis import strategies as st

from tidings.access import checksums
from tidings.errors import CallerError

NAMES = [algorithm.name for algorithm in checksums.BY_HEADER.values()]

# Check values over "123456789": the CRC catalogue's (big-endian here), FIPS 180 for the two SHAs.
CHECK_VALUES = {
    "CRC32": "cbf43926",
    "CRC32C": "e3069283",
    "CRC64NVME": "ae8b14860a799888",
    "SHA1": "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
    "SHA256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
}


def refusal(headers: dict[str, str]) -> CallerError:
    with pytest.raises(CallerError) as caught:
        checksums.promised(headers)
    assert caught.value.code == "InvalidRequest"
    return caught.value


@pytest.mark.parametrize("name", NAMES)
def test_each_algorithm_gives_its_check_value_in_its_size(name: str) -> None:
    algorithm = checksums.BY_HEADER[f"x-amz-checksum-{name.lower()}"]
    running = algorithm.start()
    running.update(b"123456789")
    assert running.digest().hex() == CHECK_VALUES[name]
    assert len(running.digest()) == algorithm.size


@given(pieces=st.lists(st.binary(max_size=50), max_size=6))
def test_each_algorithm_agrees_with_botocore_however_the_data_is_cut(pieces: list[bytes]) -> None:
    for algorithm in checksums.BY_HEADER.values():
        running = algorithm.start()
        for piece in pieces:
            running.update(piece)
        assert b64encode(running.digest()).decode() == _CHECKSUM_CLS[algorithm.name.lower()]().handle(b"".join(pieces))


def test_two_checksums_under_way_do_not_share_their_state() -> None:
    for algorithm in checksums.BY_HEADER.values():
        first, second = algorithm.start(), algorithm.start()
        first.update(b"something")
        assert second.digest() == algorithm.start().digest() != first.digest()


def test_a_checksum_in_a_header_is_promised_with_its_value() -> None:
    promise = checksums.promised({"x-amz-checksum-crc32": "NhCmhg==", "x-amz-sdk-checksum-algorithm": "CRC32"})
    assert promise is not None
    assert (promise.algorithm.name, promise.expected) == ("CRC32", bytes.fromhex("3610a686"))


def test_a_checksum_in_the_trailer_is_promised_without_its_value() -> None:
    promise = checksums.promised({"x-amz-trailer": " X-Amz-Checksum-SHA256 ,", "x-amz-sdk-checksum-algorithm": "sha256"})
    assert promise is not None
    assert (promise.algorithm.name, promise.expected) == ("SHA256", None)


def test_headers_about_checksums_that_carry_none_promise_nothing() -> None:
    headers = {
        "x-amz-checksum-mode": "ENABLED",
        "x-amz-checksum-algorithm": "CRC32",
        "x-amz-checksum-type": "COMPOSITE",
    }
    assert checksums.promised(headers) is None


@pytest.mark.parametrize(
    "value",
    [
        "",
        "abc",
        "NhCmhg",
        "NhCmhg=",
        "NhCmhh==",
        " NhCmhg==",
        "NhCmhg==\n",
        "NhC-hg==",
        "3610a686",
        "NhCmhgA=",
        "é",
        "NhCmhg==-2",
    ],
)
def test_a_value_that_is_not_base64_of_the_right_size_is_refused_with_itself(value: str) -> None:
    assert repr(value) in refusal({"x-amz-checksum-crc32": value}).message


@pytest.mark.parametrize("name", ["x-amz-checksum-md4", "x-amz-checksum-xxhash64", "x-amz-checksum-"])
def test_an_unknown_checksum_is_refused_and_never_ignored(name: str) -> None:
    for headers in ({name: "AAAA"}, {"x-amz-trailer": name}):
        message = refusal(headers).message
        assert repr(name) in message
        assert "CRC64NVME" in message


def test_a_trailer_may_announce_nothing_but_a_checksum() -> None:
    assert "'x-amz-meta-late'" in refusal({"x-amz-trailer": "x-amz-meta-late"}).message


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-checksum-crc32": "NhCmhg==", "x-amz-checksum-crc32c": "NhCmhg=="},
        {"x-amz-checksum-crc32": "NhCmhg==", "x-amz-trailer": "x-amz-checksum-crc32"},
        {"x-amz-trailer": "x-amz-checksum-crc32,x-amz-checksum-sha1"},
    ],
)
def test_a_second_checksum_is_refused(headers: dict[str, str]) -> None:
    assert "send only one" in refusal(headers).message


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"x-amz-sdk-checksum-algorithm": "MD4"}, "not known"),
        ({"x-amz-sdk-checksum-algorithm": ""}, "not known"),
        ({"x-amz-sdk-checksum-algorithm": "CRC32"}, "has no x-amz-checksum-crc32"),
        ({"x-amz-sdk-checksum-algorithm": "SHA1", "x-amz-checksum-crc32": "NhCmhg=="}, "has no x-amz-checksum-sha1"),
    ],
)
def test_an_announced_algorithm_must_be_known_and_come_with_its_checksum(headers: dict[str, str], says: str) -> None:
    assert says in refusal(headers).message
