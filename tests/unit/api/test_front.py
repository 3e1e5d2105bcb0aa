"""The front of the S3 API: hosts, cross-origin requests, settings and certificates."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from tidings.api import cors, hosts, tls
from tidings.api.request import target
from tidings.api.settings import ApiSettings
from tidings.errors import CallerError, OperatorError

DOMAINS = ("localhost", "s3.localhost", "store.example")


@pytest.mark.parametrize(
    ("host", "bucket"),
    [
        ("photos.store.example", "photos"),
        ("photos.store.example:9000", "photos"),
        ("PHOTOS.Store.Example", "photos"),
        ("my.photos.store.example", "my.photos"),
        ("photos.localhost:9000", "photos"),
        ("photos.s3.localhost", "photos"),
        ("store.example", None),
        ("s3.localhost:9000", None),
        ("localhost", None),
        ("127.0.0.1:9000", None),
        ("[::1]:9000", None),
        ("photos.elsewhere.example", None),
        ("photosstore.example", None),
        ("photos.store.example.", None),
        ("photos.store.example.evil.org", None),
        ("photos.store.example,store.example", None),
        ("photos.store.example:port", None),
        ("", None),
    ],
)
def test_a_bucket_stands_in_front_of_a_domain_of_ours_and_of_no_other(host: str, bucket: str | None) -> None:
    assert hosts.bucket(host, DOMAINS) == bucket
    assert hosts.bucket(host, ()) is None


def test_with_the_bucket_in_the_host_the_whole_path_is_the_key() -> None:
    for path, key in [(b"/", ""), (b"/a/b", "a/b"), (b"//a", "/a"), (b"/photos/a", "photos/a"), (b"/-/healthy", "-/healthy")]:
        found = target(path, b"", "photos.store.example", DOMAINS)
        assert (found.bucket, found.key) == ("photos", key)
    found = target(b"/photos/a/b", b"", "store.example", DOMAINS)
    assert (found.bucket, found.key) == ("photos", "a/b")


@pytest.mark.parametrize("name", ["", "a", "-x-", "127.0.0.1", "under_score", "a..b", "%70hotos"])
def test_what_is_no_bucket_s_name_is_refused_in_front_of_a_domain(name: str) -> None:
    with pytest.raises(CallerError) as caught:
        target(b"/key", b"", f"{name}.store.example", DOMAINS)
    assert caught.value.code == "InvalidBucketName"


def test_parameters_that_were_spent_ask_for_nothing() -> None:
    found = target(b"/photos/a", b"X-Amz-Date=1&versionId=2", spent=frozenset({"X-Amz-Date"}))
    assert found.query == {"versionId": "2"}


def asked(method: str, *headers: str, origin: str = "https://app.example") -> list[tuple[bytes, bytes]]:
    found = [(b"origin", origin.encode()), (b"access-control-request-method", method.encode())]
    return [*found, (b"access-control-request-headers", ", ".join(headers).encode())] if headers else found


def test_a_browser_may_ask_without_a_signature() -> None:
    headers = asked("PUT", "content-type", "x-amz-meta-a")
    assert cors.is_preflight("OPTIONS", headers)
    answer = cors.preflight(headers, ["*"])
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-methods"] == "GET, HEAD, PUT, POST, DELETE"
    assert answer.headers["access-control-allow-headers"] == "content-type, x-amz-meta-a"
    assert answer.headers["access-control-max-age"] == "3600"
    assert "access-control-allow-credentials" not in answer.headers


def test_only_a_whole_question_is_one() -> None:
    assert not cors.is_preflight("GET", asked("PUT"))
    for headers in (asked("PUT")[:1], asked("PUT")[1:], []):
        assert not cors.is_preflight("OPTIONS", headers)


@pytest.mark.parametrize(
    ("headers", "origins"),
    [
        (asked("PUT"), []),
        (asked("PUT"), ["https://other.example"]),
        (asked("PUT", origin="https://app.example.evil.org"), ["https://app.example"]),
        (asked("PUT", origin="null"), ["https://app.example"]),
        (asked("PATCH"), ["*"]),
        (asked("put"), ["*"]),
        (asked("PUT", "a b"), ["*"]),
        (asked("PUT", "a\x01"), ["*"]),
        (asked("PUT", "a" * 5000), ["*"]),
    ],
)
def test_a_question_is_refused_where_the_operator_allows_less(headers: list[tuple[bytes, bytes]], origins: list[str]) -> None:
    with pytest.raises(CallerError) as caught:
        cors.preflight(headers, origins)
    assert (caught.value.code, caught.value.status) == ("AccessForbidden", 403)


def test_a_page_of_an_allowed_origin_sees_the_answer_s_headers() -> None:
    origin = [(b"origin", b"https://app.example")]
    answer = {"etag": '"a"', "x-amz-version-id": "1"}
    exposed = {"access-control-allow-origin": "*", "access-control-expose-headers": "etag, x-amz-version-id"}
    assert cors.visible(origin, ["*"], answer) == exposed
    named = {**exposed, "access-control-allow-origin": "https://app.example", "vary": "Origin"}
    assert cors.visible(origin, ["https://app.example"], answer) == named
    assert cors.visible(origin, ["https://other.example"], answer) == {}
    assert cors.visible([], ["*"], answer) == {}


@pytest.mark.parametrize(
    "setting",
    [
        {"domains": ["127.0.0.1"]},
        {"domains": ["Store.Example"]},
        {"domains": ["store.example:9000"]},
        {"domains": [""]},
        {"domains": [".example"]},
        {"cors_origins": ["app.example"]},
        {"cors_origins": ["https://app.example/"]},
        {"cors_origins": ["https://*.example"]},
        {"cors_origins": ["https://App.example"]},
    ],
)
def test_a_setting_that_would_never_fit_is_refused(setting: dict[str, list[str]]) -> None:
    with pytest.raises(ValidationError):
        ApiSettings.model_validate(setting)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    return made(folder, "one"), folder / "one.key"


def made(folder: Path, name: str) -> Path:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
    subprocess.run([*command, *files, "-days", "2", "-subj", "/CN=localhost"], check=True, capture_output=True)
    return folder / f"{name}.pem"


def test_without_files_there_is_no_tls() -> None:
    assert tls.files(ApiSettings()) == (None, None)


def test_a_certificate_and_its_key_are_taken(certificate: tuple[Path, Path]) -> None:
    chain, key = certificate
    assert tls.files(ApiSettings(tls_certificate=chain, tls_key=key)) == (chain, key)


def test_what_is_wrong_with_the_files_is_one_sentence(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    chain, key = certificate
    encrypted, nonsense = tmp_path / "encrypted.key", tmp_path / "nonsense.pem"
    command = ["openssl", "ec", "-in", str(key), "-out", str(encrypted), "-aes256", "-passout", "pass:hush"]
    subprocess.run(command, check=True, capture_output=True)
    nonsense.write_text("nonsense")
    made(tmp_path, "other")
    for certificate_file, key_file, words in [
        (chain, None, "TIDINGS_API__TLS_KEY"),
        (None, key, "TIDINGS_API__TLS_CERTIFICATE"),
        (tmp_path / "missing", key, "TIDINGS_API__TLS_CERTIFICATE names .*missing, which cannot be read"),
        (chain, tmp_path / "missing", "TIDINGS_API__TLS_KEY names .*missing, which cannot be read"),
        (tmp_path, key, "cannot be read"),
        (chain, encrypted, "not encrypted"),
        (chain, nonsense, "its own private key"),
        (nonsense, key, "PEM certificate"),
        (chain, tmp_path / "other.key", "its own private key"),
    ]:
        with pytest.raises(OperatorError, match=words):
            tls.files(ApiSettings(tls_certificate=certificate_file, tls_key=key_file))
