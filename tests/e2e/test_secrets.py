"""A dump of the database gives nobody access, and no rotation is noticed by anybody who calls."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from s3_server import REGION, Server, request, s3_server, start, wait_until_ready

import canary
from conftest import Say, fresh_database
from tidings.access import api_keys
from tidings.access.api_keys import Access
from tidings.bootstrap import SEALED
from tidings.local.parts import listens
from tidings.local.postgres import Postgres, _programs
from tidings.local.processes import free_port
from tidings.secrets import keyring
from tidings.topics.verifying import Verifier
from traffic import tidings
from waiting import until
from webhooks import Webhook, webhook

SECRETS = [f"whsec_{base64.b64encode(bytes([n]) * 8 + b'webhook secret of a tenant').decode()}" for n in range(3)]
TREES = "/-/catalog/api/v1/trees"


@dataclass
class Place:
    server: Server
    hook: Webhook

    def tidings(self, *arguments: str) -> Any:
        done = tidings(
            *arguments, "--json", TIDINGS_DATABASE__URL=self.server.database_url, TIDINGS_API__PORT=str(self.server.port)
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def sns(self) -> Any:
        keys = {"aws_access_key_id": self.server.access_key_id, "aws_secret_access_key": self.server.secret}
        return boto3.client("sns", endpoint_url=self.server.endpoint, region_name=REGION, **keys)

    def subscribe(self, path: str, **attributes: str) -> tuple[str, str]:
        """A confirmed subscription to a new topic, and the token that confirmed it."""
        sns = self.sns()
        topic = sns.create_topic(Name=path.strip("/"))["TopicArn"]
        url = f"http://127.0.0.1:{self.hook.port}{path}"
        sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=url, Attributes=attributes)
        token = self.hook.confirmation(path).envelope["Token"]
        return sns.confirm_subscription(TopicArn=topic, Token=token)["SubscriptionArn"], token


@pytest.fixture
def place(postgres: Postgres, tmp_path: Path) -> Iterator[Place]:
    with webhook() as hook:
        allowed = {"TIDINGS_OUTGOING__ALLOW_HTTP": "true", "TIDINGS_OUTGOING__ALLOW": f'["127.0.0.1:{hook.port}"]'}
        with s3_server(fresh_database(postgres, "secrets"), tmp_path, **allowed) as server:
            yield Place(server, hook)


def dump(server: Server) -> bytes:
    done = subprocess.run([_programs() / "pg_dump", server.database_url], capture_output=True, check=True)
    assert b"PostgreSQL database dump complete" in done.stdout
    return done.stdout


def in_dump(content: bytes, secrets: dict[str, bytes]) -> list[str]:
    """The names of those that are there, in any of the forms in which they could be written down."""
    lower = content.lower()
    return [
        name
        for name, secret in secrets.items()
        if any(form in content for form in canary.forms(secret, False)) or secret.hex().encode() in lower
    ]


def hand_out(place: Place) -> dict[str, bytes]:
    """A secret of each kind, as whoever gets it holds it, and what the service itself keeps of them."""
    server = place.server
    made = place.tidings("access", "create", "--project", "tests")
    narrow = place.tidings("access", "restrict", made["api_key"], "--bucket", "b")
    ended = place.tidings("access", "restrict", made["access_key_id"], "--bucket", "gone")
    place.tidings("access", "revoke", ended["access_key_id"])
    arn, token = place.subscribe("/dump", RawMessageDelivery="true", WebhookSecrets=SECRETS[0])
    place.sns().set_subscription_attributes(
        SubscriptionArn=arn, AttributeName="WebhookSecrets", AttributeValue=" ".join(SECRETS[1:])
    )
    _, again = place.subscribe("/enveloped", WebhookSecrets=SECRETS[0])
    found = {"the first key": server.secret.encode(), "token": token.encode(), "another token": again.encode()}
    for name, key in (("whole", made), ("narrow", narrow), ("revoked", ended)):
        macaroon = api_keys.Macaroon.parse(key["api_key"])
        found |= {f"secret of {name}": key["secret_access_key"].encode(), f"API key {name}": key["api_key"].encode()}
        found |= {f"tail of {name}": macaroon.tail, f"bytes of {name}": macaroon._bytes()}
    for number, secret in enumerate(SECRETS):
        found |= {f"webhook {number}": secret.encode(), f"webhook {number} in bytes": base64.b64decode(secret[6:])}
    with psycopg.connect(server.database_url) as connection:
        opened = [canary.unsealed(connection, column) for column in SEALED]
        assert all(opened), "there is a secret of each kind"
        for column, values in zip(SEALED, opened, strict=True):
            found |= {f"{column.table}.{column.column} {number}": value for number, value in enumerate(values)}
        data_keys = connection.execute("select id, wrapped from data_keys").fetchall()
    [pem] = opened[-1]
    private = serialization.load_pem_private_key(pem, None)
    assert isinstance(private, RSAPrivateKey)
    numbers = private.private_numbers()
    found |= {f"line {n} of the signing key": line for n, line in enumerate(pem.splitlines()[1:-2])}
    found |= {f"number {n} of the signing key": value.to_bytes(256 if n == 2 else 128) for n, value in enumerate(
        (numbers.p, numbers.q, numbers.d)
    )}  # fmt: skip
    master = keyring.of_process().master
    found["master key"] = master.key
    found |= {f"data key {id_}": master.unwrap(id_, wrapped) for id_, wrapped in data_keys}
    return found


def test_a_dump_has_none_of_the_secrets_that_were_handed_out(place: Place, say: Say) -> None:
    secrets = hand_out(place)
    content = dump(place.server)
    assert in_dump(content, secrets) == []
    say(f"{len(secrets)} secrets looked for in a dump of {len(content)} bytes, raw, in hex and in base64: 0 found")

    with psycopg.connect(place.server.database_url, autocommit=True) as connection:  # and they would be found
        connection.execute("create table planted (n int, t text, b bytea)")
        values = list(secrets.values())
        for secret in values:
            plant = "insert into planted (t, b) values (%s, %s)"
            for before in range(3):
                in_base64 = base64.b64encode(b"x" * before + secret + b"y").decode()
                connection.execute(plant, [in_base64, None])
                assert in_dump(dump(place.server) if secret is values[0] else in_base64.encode(), {"it": secret}) == ["it"]
            connection.execute("truncate planted")
        assert in_dump(dump(place.server), secrets) == []
        for secret in values:
            connection.execute("insert into planted (b) values (%s)", [secret])
        assert in_dump(dump(place.server), secrets) == list(secrets)
        connection.execute("truncate planted")
        connection.execute("insert into planted (t) values (%s), (%s)", [SECRETS[0], secrets["API key whole"].hex()])
        assert {"webhook 0", "API key whole"} <= set(in_dump(dump(place.server), secrets))


class Load:
    """Signed requests and API keys, one key after another, so that hardly any is in a cache."""

    def __init__(self, server: Server, keys: list[Access]) -> None:
        self._server = server
        self._keys = keys
        self._stop = threading.Event()
        self.answers: list[int] = []
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(3)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, first: int) -> None:
        number = first
        while not self._stop.is_set():
            key = self._keys[number % len(self._keys)]
            self.answers += ask(self._server, key)
            number += 7


def ask(server: Server, key: Access) -> list[int]:
    """What is answered to a signature of the key, and to the API key itself."""
    signed = request(replace(server, access_key_id=key.access_key_id, secret=key.secret), "GET", "/").status
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", TREES, headers={"authorization": f"Bearer {key.api_key}"})
    bearer = connection.getresponse().status
    connection.close()
    return [signed, bearer]


def test_rotations_under_load_refuse_nobody(place: Place, tmp_path: Path, say: Say) -> None:
    server = place.server
    with psycopg.connect(server.database_url) as connection:
        keys = [api_keys.create(connection, server.project) for _ in range(600)]
    new = tmp_path / "new.key"
    tidings("secrets", "new-master-key", str(new))
    with Load(server, keys) as load:
        until(lambda: len(load.answers) > 20, "the load has begun")
        first = place.tidings("secrets", "rotate")
        made = Access(**_named(place.tidings("access", "create", "--project", "tests")))
        assert ask(server, made) == [200, 200], "a key under a data key that the server has not met"
        second = place.tidings("secrets", "rotate", "--new-master-key-file", str(new))
        before = len(load.answers)
        until(lambda: len(load.answers) > before + 20, "the load goes on")
    assert first["total"] >= 3 * 600
    assert second["total"] >= 3 * 600
    assert len(second["master_keys"]) == 2
    assert set(load.answers) == {200}
    say(f"{len(load.answers)} requests beside two rotations of {first['total']} and {second['total']} secrets: 0 refused")

    with psycopg.connect(server.database_url) as connection:
        assert connection.execute("select count(*) from data_keys where retired_at is null").fetchone() == (2,)
    for setting in ({}, {"TIDINGS_SECRETS__MASTER_KEY": "", "TIDINGS_SECRETS__MASTER_KEY_FILE": str(new)}):
        port = free_port()  # another process beside it, with the old master key or with the new one
        environment = {"TIDINGS_DATABASE__URL": server.database_url, "TIDINGS_API__PORT": str(port), **setting}
        environment["TIDINGS_STORE__BLOBS"] = f"file://{tmp_path}/blobs"
        with (tmp_path / "server.log").open("ab") as log:
            other = replace(server, port=port, process=start(environment, log))
        try:
            wait_until_ready(other)
            assert ask(other, keys[0]) == ask(other, made) == [200, 200]
        finally:
            other.process.kill()  # a worker that is still starting may lose a SIGTERM
            other.process.wait()


def _named(printed: dict[str, str]) -> dict[str, str]:
    return {"api_key": printed["api_key"], "access_key_id": printed["access_key_id"], "secret": printed["secret_access_key"]}


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


def test_messages_signed_before_and_after_a_new_signing_key_are_both_verified(place: Place) -> None:
    place.subscribe("/before")
    url = place.tidings("secrets", "rotate-signing-key")["certificate"]
    assert b"BEGIN CERTIFICATE" in get(url), "served before anything is signed with it"
    # A process that has just started has the new key; the one that runs may sign with the old one for a minute.
    place.server.process.kill()
    place.server.process.wait()
    until(lambda: not listens(place.server.port), "its workers have ended with it")
    environment = {
        "TIDINGS_DATABASE__URL": place.server.database_url,
        "TIDINGS_API__PORT": str(place.server.port),
        "TIDINGS_STORE__BLOBS": f"file://{place.server.folder}/blobs",
        "TIDINGS_OUTGOING__ALLOW_HTTP": "true",
        "TIDINGS_OUTGOING__ALLOW": f'["127.0.0.1:{place.hook.port}"]',
    }
    with (place.server.folder / "server.log").open("ab") as log:
        place.server.process = start(environment, log)
    wait_until_ready(place.server)
    place.subscribe("/after")
    old, new = (place.hook.confirmation(path).body for path in ("/before", "/after"))
    assert json.loads(new)["SigningCertURL"] == url != json.loads(old)["SigningCertURL"]

    async def fetch(at: str) -> bytes:
        return await asyncio.to_thread(get, at)

    for body in (old, new):
        verifier = Verifier([json.loads(body)["TopicArn"]], fetch, [place.server.endpoint])
        assert asyncio.run(verifier.verify(body)).type == "SubscriptionConfirmation"


@pytest.mark.parametrize("command", [["serve"], ["stream"], ["access", "create", "--project", "tests"]])
def test_without_the_master_key_nothing_starts_and_one_sentence_says_what_to_do(
    place: Place, tmp_path: Path, command: list[str]
) -> None:
    other = tmp_path / "other.key"
    tidings("secrets", "new-master-key", str(other))
    settings = {"TIDINGS_DATABASE__URL": place.server.database_url, "TIDINGS_API__PORT": str(free_port())}
    for given, words in (({}, "No master key: set TIDINGS_SECRETS__MASTER_KEY_FILE"), (
        {"TIDINGS_SECRETS__MASTER_KEY_FILE": str(other)}, "and this database's secrets are under"
    )):  # fmt: skip
        done = tidings(*command, TIDINGS_SECRETS__MASTER_KEY="", **settings, **given)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert words in done.stderr
