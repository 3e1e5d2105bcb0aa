"""Which credential opens which door: every form of every credential at every front, and nothing that a cache could confuse."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from s3_server import REGION, Server, s3_server

import canary
from tidings.access import api_keys
from tidings.access.api_keys import Access

TREES = "/-/catalog/api/v1/trees"


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Server]:
    """One process, so that every request meets the same caches."""
    with s3_server(database_url, tmp_path, TIDINGS_API__WORKERS="1") as running:
        yield running


@pytest.fixture
def access(server: Server) -> Access:
    with psycopg.connect(server.database_url, autocommit=True) as connection:
        made = api_keys.create(connection, server.project)
    canary.plant(server.database_url)
    return made


def ask(server: Server, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        canary.answered(dict(answer.getheaders()), answer.read())
        return answer.status
    finally:
        connection.close()


def signed(server: Server, access_key_id: str, secret: str, service: str = "s3") -> int:
    """ListBuckets or ListQueues, signed by botocore."""
    request = AWSRequest("GET", f"{server.endpoint}/", headers={})
    (S3SigV4Auth if service == "s3" else SigV4Auth)(Credentials(access_key_id, secret), service, REGION).add_auth(request)
    return ask(server, "/", dict(request.headers))


def bearer(server: Server, text: str) -> int:
    return ask(server, TREES, {"authorization": f"Bearer {text}"})


def test_an_access_key_id_does_not_open_the_catalog_after_an_s3_request_that_names_it(server: Server, access: Access) -> None:
    assert bearer(server, access.access_key_id) == 401
    assert signed(server, access.access_key_id, "x" * 40) == 403
    assert bearer(server, access.access_key_id) == 401
    assert signed(server, access.access_key_id, access.secret) == 200
    assert bearer(server, access.access_key_id) == 401


@pytest.mark.parametrize("service", ["s3", "sqs"])
def test_an_api_key_signs_nothing_after_the_catalog_took_it(server: Server, access: Access, service: str) -> None:
    assert bearer(server, access.api_key) == 200
    for secret in ("", access.api_key, access.secret):
        assert signed(server, access.api_key, secret, service) == 403
