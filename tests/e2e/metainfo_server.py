"""The server with its gRPC front, a Pub/Sub server for its test events, and keys for both fronts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import psycopg
from google.pubsub_v1 import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from s3_server import Server, s3_server

from tidings.access import api_keys
from tidings.access.api_keys import Access
from tidings.access.macaroons import Caveat
from tidings.access.permissions import ACTIONS
from tidings.access.projects import create_project
from tidings.client import Configuration, Metainfo
from tidings.local.processes import free_port
from tidings.local.pubsub import PubSubServer, running

TOPIC, OTHER_TOPIC = "projects/tidings-test/topics/one", "projects/tidings-test/topics/other"
CREATED = Configuration(TOPIC, ("s3:ObjectCreated:*",), "logs/", ".txt", "ObjectEvents")
REMOVED = Configuration(OTHER_TOPIC, ("s3:ObjectRemoved:*", "s3:ObjectRemoved:Delete"), id="Removals")

_numbers = itertools.count(1)


@dataclass
class Front:
    server: Server
    pubsub: PubSubServer

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.server.grpc_port}"

    def key(self, actions: Iterable[str] = ACTIONS, project: str = "", **limit: Any) -> Access:
        with psycopg.connect(self.server.database_url, autocommit=True) as connection:
            return api_keys.create(connection, project or self.server.project, actions, Caveat(**limit))

    def revoke(self, api_key: str) -> None:
        with psycopg.connect(self.server.database_url, autocommit=True) as connection:
            api_keys.revoke(connection, api_key)

    def client(self, api_key: str = "", **options: Any) -> Metainfo:
        return Metainfo(self.target, api_key or self.key().api_key, **{"tls": False, "timeout": 60.0, **options})

    def s3(self, access: Access | None = None) -> Any:
        server = self.server
        return (replace(server, access_key_id=access.access_key_id, secret=access.secret) if access else server).client()

    def bucket(self, access: Access | None = None) -> str:
        """A new one."""
        name = f"bucket-{next(_numbers)}"
        self.s3(access).create_bucket(Bucket=name)
        return name

    def encrypted_project(self) -> str:
        with psycopg.connect(self.server.database_url, autocommit=True) as connection:
            return create_project(connection, f"encrypted-{next(_numbers)}", path_encryption=True)

    def table(self) -> list[tuple[Any, ...]]:
        """Every configuration, and how often each bucket's was changed."""
        rows = "select bucket_name, config_id, topic_name, events, filter_prefix, filter_suffix from bucket_eventing_configs"
        versions = "select name, config::text, null, null::text[], null, null from bucket_metainfos"
        return self.server.query(f"{rows} union all {versions} order by 1, 2")

    def published(self, topic: str) -> int:
        return self.pubsub.stats().get(topic, {"published": 0})["published"]


@contextmanager
def metainfo_server(database_url: str, folder: Path, **environment: str) -> Iterator[Front]:
    with running() as pubsub:
        with grpc.insecure_channel(pubsub.address) as channel:
            publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
            for topic in (TOPIC, OTHER_TOPIC):
                publisher.create_topic(name=topic)
        settings = {
            "TIDINGS_API__GRPC_PORT": str(free_port()),
            "TIDINGS_API__WORKERS": "1",
            "TIDINGS_PUBSUB__EMULATOR_HOST": pubsub.address,
            **environment,
        }
        with s3_server(database_url, folder, **settings) as server:
            yield Front(server, pubsub)
