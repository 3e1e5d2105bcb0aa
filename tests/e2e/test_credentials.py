"""Which credential opens which door: every form of every credential at every front, and nothing that a cache could confuse."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
import psycopg
import pytest
import upload_place
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from credential_forms import Door, Pair
from credential_matrix import (
    Ending,
    Keys,
    Offer,
    Place,
    Text,
    at_links,
    at_webhook,
    over_grpc,
    pairs_of,
    signatures_where_none_counts,
    texts_of,
    texts_where_none_counts,
    with_signatures,
    with_texts,
)
from credential_operations import BUCKET, CATALOG, QUEUE, Call, catalog_calls_of_all, signed_calls, unlisted, upload_calls
from metainfo_server import metainfo_server
from s3_server import REGION, Server, s3_server, start, wait_until_ready
from sqs_clients import sqs

import canary
import sns_messages
from conftest import Say
from files_registry import Topic, event, files_webhook, trusted_topic
from tidings.access import api_keys
from tidings.access.api_keys import Access
from tidings.access.projects import create_project
from waiting import until
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


def test_every_operation_of_every_front_is_offered_every_credential() -> None:
    assert unlisted([*signed_calls("http://127.0.0.1", "project"), *catalog_calls_of_all(), *upload_calls()]) == set()


def test_every_credential_in_every_form_opens_the_doors_that_it_is_meant_for(
    database_url: str, tmp_path: Path, say: Say
) -> None:
    """One worker each, so that every request meets the same caches."""
    tried: Counter[str] = Counter()
    meant = 0
    wrong: list[str] = []

    def offer(phase: str, offers: list[Offer], before: Callable[[Offer], object] = lambda _: None) -> None:
        nonlocal meant
        last = None
        for each in offers:
            if each.credential != last:
                before(each)
            last = each.credential
            meant += each.meant
            try:
                opened = each.knock()
            except AssertionError as unknown:
                wrong.append(f"{phase}: {each}: {unknown}")
                continue
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
            keys, ending = Keys.create(server), Ending.create(server)
            server.client().create_bucket(Bucket=BUCKET)
            server.client().put_object(Bucket=BUCKET, Key="key", Body=b"x")
            upload = server.client().create_multipart_upload(Bucket=BUCKET, Key="parts")["UploadId"]
            sqs(server).create_queue(QueueName=QUEUE)
            uploads = upload_place.place(server, "matrix-uploads")
            arn = server.client("sns").create_topic(Name="matrix")["TopicArn"]
            server.client("sns").subscribe(TopicArn=arn, Protocol="http", Endpoint=hook.url)
            place = Place(server, arn, hook.confirmation().envelope["Token"], upload)

            def fail(each: Offer) -> None:
                """Whoever offers it has tried before, with what is wrong, at both kinds of doors."""
                for access in (keys.valid, keys.foreign):
                    assert signed(server, access.access_key_id, "x" * 40) == 403
                    assert bearer(server, access.access_key_id) == 401
                    assert signed(server, access.api_key, "", "sqs") == 403
                    assert bearer(server, access.api_key[:-1]) == 401
                with suppress(AssertionError):  # it is counted when it is offered
                    each.knock()

            def succeed(_: Offer) -> None:
                """Its owner has just been served, at both kinds of doors."""
                for access in (keys.valid, keys.foreign):
                    assert signed(server, access.access_key_id, access.secret) == 200
                    assert bearer(server, access.api_key) == 200

            with ExitStack() as started:
                fronts = Fronts.start(started, place, uploads, topic, tmp_path)
                offers = [*fronts.offers(keys.pairs(), keys.texts(), keys), *fronts.beside(keys.texts())]
                offer("cold", sorted(offers, key=lambda each: each.meant))  # nothing was accepted before what must not be
                offer("after a failure", offers, fail)
                offer("after a success", offers, succeed)
                good = fronts.offers(pairs_of(ending.whole), texts_of(ending.whole), keys)
                offer("while it is good", good)
                offer("while it is kept", kept := [each for each in good if each.door in CACHED])
                ending.end()
                for each in kept:
                    until(lambda each=each: not each.knock(), f"{each} has ended")
                ended = [each._replace(meant=False) for each in good]
                offer("revoked after a good use", ended)
            restart(server)
            with ExitStack() as started:
                fronts = Fronts.start(started, place, uploads, topic, tmp_path)
                offers = [*fronts.offers(keys.pairs(), keys.texts(), keys), *fronts.beside(keys.texts())]
                ended = fronts.offers(pairs_of(ending.whole), texts_of(ending.whole), keys)
                offers += [each._replace(meant=False) for each in ended]
                offer("after a restart", sorted(offers, key=lambda each: each.meant))
    say(f"{tried.total():,} combinations tried, {tried['accepted']:,} accepted, {meant:,} meant to be")
    assert wrong == []
    assert (tried.total() >= 1500, tried["accepted"]) == (True, meant)


CACHED = ("s3 ListBuckets, header", "catalog config, Bearer", "uploads GET, Bearer")
"""One door of each cache: that of access keys, that of API keys, and that of the uploads' process."""


@dataclass
class Fronts:
    """The fronts beside the API as processes, and what is offered to all of them."""

    place: Place
    topic: Topic
    api: Door
    uploads: Door
    files: Door
    channel: grpc.Channel

    @classmethod
    def start(cls, started: ExitStack, place: Place, uploads: upload_place.Place, topic: Topic, folder: Path) -> Fronts:
        server = place.server
        client, _ = started.enter_context(upload_place.front(uploads, folder))
        registry = started.enter_context(files_webhook(server.database_url, folder, topic.url))
        channel = started.enter_context(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
        doors = Door(server.endpoint), Door(str(client.base_url)), Door(registry.url)
        for door in doors:
            started.callback(door.close)
        return cls(place, topic, *doors, channel)

    def offers(self, pairs: list[Pair], texts: list[Text], keys: Keys) -> list[Offer]:
        """Of keys, to all doors; that of the files webhook is for none."""
        calls = [*((self.api, call) for call in catalog_calls_of_all()), *((self.uploads, call) for call in upload_calls())]
        unsigned = {name: value for name, value in self.topic.message(event()).items() if name != "Signature"}
        message = Call("message", "files", "POST", "/api/sns", {}, json.dumps(unsigned).encode(), hidden=("401",))
        [whole] = pairs_of({"valid": keys.valid})
        return [
            *with_signatures(self.place, self.api, pairs, whole),
            *signatures_where_none_counts([*calls, (self.files, message)], pairs),
            *with_texts(calls, texts),
            *texts_where_none_counts(self.place, self.api, texts),
            *over_grpc(self.channel, pairs, texts),
        ]

    def beside(self, texts: list[Text]) -> list[Offer]:
        """To the doors that want another proof: a link's token, a topic's signature."""
        text = event()
        genuine = self.topic.message(text)
        certificate = f"{self.place.server.endpoint}/certificate.pem"
        others = {
            "no signature": {name: value for name, value in genuine.items() if name != "Signature"},
            "signature over something else": {**genuine, "Message": f"{text} "},
            "signature of another key": sns_messages.signed(self.topic.message(text), sns_messages.key(2048, 1)),
            "certificate of another server": self.topic.message(text, SigningCertURL=certificate),
        }
        return [*at_links(self.place, self.api, texts), *at_webhook(self.files, genuine, others, texts)]


def test_a_catalog_that_is_open_to_everybody_takes_no_key_that_does_not_count(database_url: str, tmp_path: Path) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        project = create_project(connection, "open")
    settings = {"TIDINGS_API__WORKERS": "1", "TIDINGS_CATALOG__ANONYMOUS_PROJECT": project}
    with s3_server(database_url, tmp_path, **settings) as server:
        api = Door(server.endpoint)
        try:
            for each in with_texts([(api, call) for call in catalog_calls_of_all()], Keys.create(server).texts()):
                operation, _, form = each.door.rpartition(", ")
                nobody = form in ("X-Api-Key", "query") and "subscri" not in operation
                assert each.knock() == (each.meant or nobody), each
        finally:
            api.close()


def restart(server: Server) -> None:
    """Another process with the same settings: it knows nothing of what was asked before."""
    settings = psutil.Process(server.process.pid).environ()
    server.process.terminate()
    server.process.wait(120)
    with (server.folder / "server.log").open("ab") as log:
        server.process = start(settings, log)
    wait_until_ready(server)
