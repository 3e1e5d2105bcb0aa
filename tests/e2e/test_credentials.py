"""Which credential opens which door: every form of every credential at every front, and nothing that a cache could confuse."""

from __future__ import annotations

import http.client
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import psutil
import psycopg
import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from credential_matrix import (
    BUCKET,
    CATALOG,
    QUEUE,
    Door,
    Keys,
    Offer,
    at_links,
    at_webhook,
    over_grpc,
    signatures_where_none_counts,
    texts_where_none_counts,
    with_signatures,
    with_texts,
)
from metainfo_server import metainfo_server
from s3_server import REGION, Server, s3_server, start, wait_until_ready
from sqs_clients import sqs
from upload_place import Place, front, place

import canary
import sns_messages
from conftest import Say
from files_registry import Topic, event, files_webhook, trusted_topic
from tidings.access import api_keys
from tidings.access.api_keys import Access
from webhooks import webhook

TREES = f"{CATALOG}trees"


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


def test_every_credential_in_every_form_opens_the_doors_that_it_is_meant_for(
    database_url: str, tmp_path: Path, say: Say
) -> None:
    """One worker each, so that every request meets the same caches."""
    tried: Counter[str] = Counter()
    wrong: list[str] = []

    def offer(phase: str, offers: list[Offer], before: Callable[[Offer], object]) -> None:
        last = None
        for each in offers:
            if each.credential != last:
                before(each)
            last = each.credential
            opened = each.knock()
            tried["accepted" if opened else "refused"] += 1
            if opened != each.meant:
                wrong.append(f"{phase}: {each} was {'accepted' if opened else 'refused'}")

    with webhook() as hook, trusted_topic() as topic:
        settings = {
            "TIDINGS_OUTGOING__ALLOW_HTTP": "true",
            "TIDINGS_OUTGOING__ALLOW": f'["127.0.0.1:{hook.port}"]',
        }
        with metainfo_server(database_url, tmp_path, **settings) as metainfo:
            server = metainfo.server
            keys = Keys.create(server)
            server.client().create_bucket(Bucket=BUCKET)
            server.client().put_object(Bucket=BUCKET, Key="key", Body=b"x")
            sqs(server).create_queue(QueueName=QUEUE)
            uploads = place(server, "matrix-uploads")
            arn = server.client("sns").create_topic(Name="matrix")["TopicArn"]
            server.client("sns").subscribe(TopicArn=arn, Protocol="http", Endpoint=hook.url)
            link = (arn, hook.confirmation().envelope["Token"])

            def fail(each: Offer) -> None:
                """Whoever offers it has tried before, with what is wrong, at both kinds of doors."""
                for access in (keys.valid, keys.foreign):
                    assert signed(server, access.access_key_id, "x" * 40) == 403
                    assert bearer(server, access.access_key_id) == 401
                    assert signed(server, access.api_key, "", "sqs") == 403
                    assert bearer(server, access.api_key[:-1]) == 401
                each.knock()

            def succeed(_: Offer) -> None:
                """Its owner has just been served, at both kinds of doors."""
                for access in (keys.valid, keys.foreign):
                    assert signed(server, access.access_key_id, access.secret) == 200
                    assert bearer(server, access.api_key) == 200

            with ExitStack() as fronts:
                offers = made_offers(fronts, server, uploads, topic, keys, link, tmp_path)
                offer("cold", offers, lambda _: None)
                offer("after a failure", offers, fail)
                offer("after a success", offers, succeed)
            restart(server)
            with ExitStack() as fronts:
                offers = made_offers(fronts, server, uploads, topic, keys, link, tmp_path)
                offer("after a restart", offers, lambda _: None)
    meant = 4 * sum(each.meant for each in offers)
    say(f"{tried.total():,} combinations tried, {tried['accepted']:,} accepted, {meant:,} meant to be")
    assert wrong == []
    assert (tried.total() >= 1500, tried["accepted"]) == (True, meant)


def made_offers(
    fronts: ExitStack, server: Server, uploads: Place, topic: Topic, keys: Keys, link: tuple[str, str], folder: Path
) -> list[Offer]:
    """The fronts beside the API, and what is offered to all of them."""
    client, _ = fronts.enter_context(front(uploads, folder))
    registry = fronts.enter_context(files_webhook(server.database_url, folder, topic.url))
    channel = fronts.enter_context(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
    api, upload_front, files = Door(server.endpoint), Door(str(client.base_url)), Door(registry.url)
    for door in (api, upload_front, files):
        fronts.callback(door.close)
    pairs, texts = keys.pairs(), keys.texts()
    beside = {"catalog": (api, TREES), "uploads": (upload_front, "/api/uploads"), "files webhook": (files, "/api/sns")}
    text = event()
    genuine = topic.message(text)
    others = {
        "no signature": {name: value for name, value in genuine.items() if name != "Signature"},
        "signature over something else": {**genuine, "Message": f"{text} "},
        "signature of another key": sns_messages.signed(topic.message(text), sns_messages.key(2048, 1)),
        "certificate of another server": topic.message(text, SigningCertURL=f"{server.endpoint}/certificate.pem"),
    }
    return [
        *with_signatures(api, pairs),
        *signatures_where_none_counts(beside, pairs),
        *with_texts(api, upload_front, texts),
        *texts_where_none_counts(api, texts),
        *over_grpc(channel, texts),
        *at_links(api, *link, texts),
        *at_webhook(files, genuine, others, texts),
    ]


def restart(server: Server) -> None:
    """Another process with the same settings: it knows nothing of what was asked before."""
    settings = psutil.Process(server.process.pid).environ()
    server.process.terminate()
    server.process.wait(120)
    with (server.folder / "server.log").open("ab") as log:
        server.process = start(settings, log)
    wait_until_ready(server)
