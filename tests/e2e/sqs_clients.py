"""boto3's client for queues, and other keys, over the server of `s3_server`."""

from __future__ import annotations

from typing import Any

import boto3
import psycopg
from botocore.config import Config
from s3_server import REGION, Server

import canary
from tidings.access import api_keys
from tidings.access.macaroons import Caveat
from tidings.access.permissions import ACTIONS
from tidings.access.projects import create_project


def sqs(server: Server, access_key_id: str = "", secret: str = "", **config: Any) -> Any:
    """boto3 at its default settings, but for the retries: what fails should be seen."""
    client = boto3.client(
        "sqs",
        endpoint_url=server.endpoint,
        region_name=REGION,
        aws_access_key_id=access_key_id or server.access_key_id,
        aws_secret_access_key=secret or server.secret,
        config=Config(**{"retries": {"total_max_attempts": 1}, "max_pool_connections": 30, **config}),
    )

    def see(http_response: Any, **_: Any) -> None:
        canary.answered(http_response.headers, http_response.content)

    client.meta.events.register("after-call.sqs", see)
    return client


def another_project(server: Server, name: str) -> tuple[str, Any]:
    """A project of its own, and a client for it."""
    with psycopg.connect(server.database_url, autocommit=True) as connection:
        project = create_project(connection, name)
        made = api_keys.create(connection, project)
    canary.plant(server.database_url)
    return project, sqs(server, made.access_key_id, made.secret)


def with_key(server: Server, *actions: str, limit: Caveat | None = None) -> Any:
    """A client whose key may do only this."""
    with psycopg.connect(server.database_url, autocommit=True) as connection:
        made = api_keys.create(connection, server.project, actions or ACTIONS, limit or Caveat())
    canary.plant(server.database_url)
    return sqs(server, made.access_key_id, made.secret)


def code_of(error: Any) -> str:
    return str(error.value.response["Error"]["Code"])
