"""Of migration 20: encrypts secrets that lie in clear, and drops their columns. A database without any needs no master key."""

from __future__ import annotations

from typing import Any

from psycopg import Connection

from tidings.access.api_keys import ROOT, SECRET, TAIL
from tidings.access.macaroons import Macaroon
from tidings.secrets import keyring
from tidings.topics.signing import SIGNING_KEY, certificate_id
from tidings.topics.subscribing import WEBHOOK_SECRETS

_DROP = """
alter table access_keys
    drop column secret_access_key,
    drop column api_key,
    alter column sealed_secret set not null,
    add check ((head is null) = (sealed_tail is null)),
    add check ((head is null) = (caveats is null));
alter table api_keys drop column secret, alter column sealed_root set not null;
alter table subscriptions drop column secrets;
drop table signing_key;
"""


def run(connection: Connection[Any]) -> None:
    """In the transaction of the migration: without a master key nothing has happened.

    Old row versions hold secrets in clear until migration 22 has the tables written anew.
    """
    access_keys = connection.execute("select access_key_id, secret_access_key, api_key from access_keys").fetchall()
    api_keys = connection.execute("select head, secret from api_keys").fetchall()
    webhooks = connection.execute("select arn, secrets from subscriptions where cardinality(secrets) > 0").fetchall()
    signing = connection.execute("select private_key, certificate, created_at from signing_key").fetchall()
    if access_keys or api_keys or webhooks or signing:
        ring = keyring.of_process()
        for access_key_id, secret, api_key in access_keys:
            key = Macaroon.parse(api_key) if api_key is not None else None
            sealed = ring.seal(connection, SECRET, access_key_id, secret.encode())
            tail = ring.seal(connection, TAIL, access_key_id, key.tail) if key is not None else None
            connection.execute(
                "update access_keys set sealed_secret = %s, sealed_tail = %s, caveats = %s where access_key_id = %s",
                [sealed, tail, list(key.caveats) if key is not None else None, access_key_id],
            )
        for head, root in api_keys:
            sealed = ring.seal(connection, ROOT, head, root)
            connection.execute("update api_keys set sealed_root = %s where head = %s", [sealed, head])
        for arn, secrets in webhooks:
            sealed = ring.seal(connection, WEBHOOK_SECRETS, arn, " ".join(secrets).encode())
            connection.execute(
                "update subscriptions set sealed_secrets = %s, secret_count = %s where arn = %s", [sealed, len(secrets), arn]
            )
        for private, certificate, created_at in signing:
            id_ = certificate_id(certificate.encode())
            connection.execute(
                "insert into signing_keys (id, sealed_key, certificate, created_at) values (%s, %s, %s, %s)",
                [id_, ring.seal(connection, SIGNING_KEY, id_, private.encode()), certificate, created_at],
            )
    connection.execute(_DROP.encode())
