"""What callers can do with subscriptions: who is told, from when on, and until when."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, LiteralString

from psycopg import AsyncConnection

from tidings import audit, plugins
from tidings.access import permissions
from tidings.access.keys import Principal
from tidings.db.pool import Pool, borrowed
from tidings.errors import CallerError
from tidings.events import arn as arns
from tidings.events.arn import SqsQueue
from tidings.outgoing.guard import Guard, listeners
from tidings.outgoing.urls import Refused
from tidings.queues import table as queues
from tidings.secrets import keyring
from tidings.secrets.keyring import Keyring, SealedColumn
from tidings.settings import Settings
from tidings.topics import model, statements
from tidings.topics.model import Subscription, invalid
from tidings.topics.permitting import denied, granted, no_topic, not_served, require
from tidings.topics.service import PAGE, Topics

if TYPE_CHECKING:
    from tidings.topics.confirming import Confirming

WEBHOOK_SECRETS = SealedColumn("subscriptions", "sealed_secrets", "arn")
_TOKEN_SECONDS = 3 * 24 * 3600.0
_TOKEN_BYTES = 64


class Subscriptions:
    def __init__(self, settings: Settings, pool: Pool, topics: Topics) -> None:
        self._settings = settings
        self._pool = pool
        self._topics = topics
        self._keyring = keyring.under(settings.secrets)
        self._guard = Guard(settings.outgoing, listeners(settings))
        self._confirming: Confirming | None = None

    @property
    def confirming(self) -> Confirming:
        """Made when it is first needed: a server that has no webhooks does without an HTTP client."""
        if self._confirming is None:
            from tidings.topics.confirming import Confirming

            self._confirming = Confirming(self._settings, self._pool)
        return self._confirming

    async def subscribe(
        self, caller: Principal, topic: str, protocol: str, endpoint: str, attributes: Mapping[str, str]
    ) -> Subscription:
        """A subscription that waits for its endpoint's word, unless there is a confirmed one already, or it is a queue."""
        require(caller, permissions.SUBSCRIBE)
        if protocol not in model.PROTOCOLS:
            raise invalid(f"Protocol: {protocol[:100]!r} is not served: there is {', '.join(model.PROTOCOLS)}")
        raw, secrets_ = _subscription_attributes(attributes)
        await self._reachable_topic(caller, topic)
        await self._check_endpoint(caller, protocol, endpoint)
        token = secrets.token_hex(_TOKEN_BYTES)
        async with audit.transaction(self._pool) as connection:
            # the topic's row is the lock: nobody can go beyond the limit beside us, nor delete the topic under us
            owner = await (
                await connection.execute("select project, signature_version from topics where arn = %s for update", [topic])
            ).fetchone()
            if owner is None:
                raise no_topic()
            await connection.execute(statements.FORGET_UNCONFIRMED, [topic])
            row = await (await connection.execute(statements.FIND, [topic, protocol, endpoint])).fetchone()
            found = await subscription(connection, self._keyring, row) if row else None
            if found and found.confirmed:
                if found.project != caller.project:
                    raise denied("Subscribe", topic)
                if attributes and (found.raw, found.secrets) != (raw, secrets_):
                    raise invalid("Attributes: Subscription already exists with different attributes")
                return found
            arn = found.arn if found else f"{topic}:{uuid.uuid4()}"
            values = {
                "arn": arn,
                "topic": topic,
                "project": caller.project,
                "owner": owner[0],
                "protocol": protocol,
                "endpoint": endpoint,
                "raw": raw,
                "secrets": await self._sealed(connection, arn, secrets_),
                "secret_count": len(secrets_),
                "token": _hashed(token),
                "seconds": _TOKEN_SECONDS,
                "lane": None,
            }
            if found is None:
                await self._check_room(connection, topic)
                if protocol == "sqs":  # whoever could grant it has done so
                    values["lane"] = await _new_lane(connection, values)
                await connection.execute(statements.SUBSCRIBE, values)
            else:
                await connection.execute(statements.ASK_AGAIN, values)
        made = Subscription(arn, topic, caller.project, protocol, endpoint, raw, secrets_, False, protocol == "sqs", owner[1])
        if not made.confirmed:
            self.confirming.ask(True, made, token)
        return made

    async def confirm(self, topic: str, token: str, authenticated: bool) -> str:
        """What the token proves is enough: whoever has it reads what is sent to the endpoint."""
        model.topic_arn(topic)
        async with audit.transaction(self._pool) as connection:
            row = await (await connection.execute(statements.FIND_BY_TOKEN, [topic, _hashed(token)])).fetchone()
            if row is None:
                raise invalid("Token: it is not the one of a subscription that waits, or it is older than three days")
            arn, confirmed, owner, endpoint = row
            if not confirmed:
                lane = await _new_lane(connection, {"owner": owner, "arn": arn, "endpoint": endpoint})
                values = {"lane": lane, "authenticated": authenticated, "arn": arn}
                await connection.execute(statements.CONFIRM, values)
        return str(arn)

    async def unsubscribe(self, caller: Principal | None, arn: str) -> None:
        """End a subscription. Without a caller it is whoever has the link of a message, unless that was switched off.

        An endpoint is told, and can come back by a link for three days.
        """
        model.subscription_arn(arn)
        found = await self._find_subscription(arn)
        if caller is not None:
            require(caller, permissions.SUBSCRIBE)
            if found is not None and caller.project not in (found.project, model.topic_arn(found.topic).account):
                found = None
        elif found is not None and found.authenticated:
            raise CallerError("AuthorizationError", "This subscription is ended by a signed request only.")
        if found is None:
            raise CallerError("NotFound", "Subscription does not exist")
        token = secrets.token_hex(_TOKEN_BYTES)
        async with audit.transaction(self._pool) as connection:
            row = await (await connection.execute(statements.UNSUBSCRIBE, [arn])).fetchone()
            if row is None:
                raise invalid("SubscriptionArn: the subscription is not confirmed; it ends by itself")
            ended = await subscription(connection, self._keyring, row)
            if ended.protocol == "sqs":
                return
            again = f"{ended.topic}:{uuid.uuid4()}"
            values = {
                "arn": again,
                "topic": ended.topic,
                "project": ended.project,
                "protocol": ended.protocol,
                "endpoint": ended.endpoint,
                "raw": ended.raw,
                "secrets": await self._sealed(connection, again, ended.secrets),
                "secret_count": len(ended.secrets),
                "token": _hashed(token),
                "seconds": _TOKEN_SECONDS,
                "lane": None,
            }
            await connection.execute(statements.SUBSCRIBE, values)
            await connection.execute("update subscriptions set left_at = now() where arn = %(arn)s", values)
        self.confirming.ask(False, ended, token)

    async def list_subscriptions(self, caller: Principal, after: str) -> list[Subscription]:
        require(caller, permissions.SUBSCRIBE)
        return await self._read(statements.LIST_SUBSCRIPTIONS, [caller.project, after, PAGE + 1])

    async def list_by_topic(self, caller: Principal, topic: str, after: str) -> list[Subscription]:
        require(caller, permissions.MANAGE_TOPICS, permissions.SUBSCRIBE)
        await self._topics.own(caller, topic, "ListSubscriptionsByTopic")
        return await self._read(statements.LIST_BY_TOPIC, [topic, after, PAGE + 1])

    async def subscription(self, caller: Principal, arn: str) -> Subscription:
        """One that belongs to the caller's project: that which subscribed, or that of the topic."""
        require(caller, permissions.SUBSCRIBE)
        found = await self._find_subscription(model.subscription_arn(arn))
        if found is None or caller.project not in (found.project, model.topic_arn(found.topic).account):
            raise CallerError("NotFound", "Subscription does not exist")
        return found

    async def set_subscription_attribute(self, caller: Principal, arn: str, name: str, value: str) -> None:
        found = await self.subscription(caller, arn)
        if found.project != caller.project:
            raise denied("SetSubscriptionAttributes", arn)
        if name == "RawMessageDelivery":
            await audit.run(self._pool, statements.SET_RAW, [model.boolean(name, value), arn])
        elif name == "WebhookSecrets":
            secrets_ = model.webhook_secrets(value)
            async with audit.transaction(self._pool) as connection:
                sealed = await self._sealed(connection, arn, secrets_)
                await connection.execute(statements.SET_SECRETS, [sealed, len(secrets_), arn])
        else:
            raise not_served(name)

    async def close(self) -> None:
        if self._confirming is not None:
            await self._confirming.close()

    async def _reachable_topic(self, caller: Principal, arn: str) -> None:
        if model.topic_arn(arn).account != caller.project:
            async with self._pool.connection() as connection:
                if not await granted(connection, caller.project, arn, model.SUBSCRIBE):
                    raise denied("Subscribe", arn)

    async def _check_endpoint(self, caller: Principal, protocol: str, endpoint: str) -> None:
        if protocol == "sqs":
            await self._check_queue(caller, endpoint)
            return
        if not endpoint.startswith(f"{protocol}://"):
            raise invalid(f"Endpoint: must match the specified protocol, {protocol}")
        try:
            self._guard.endpoint(endpoint)
        except Refused as refused:
            raise invalid(f"Endpoint: {refused}") from None

    async def _check_queue(self, caller: Principal, endpoint: str) -> None:
        try:
            address = arns.parse(endpoint)
        except CallerError:
            address = None
        if not isinstance(address, SqsQueue):
            raise invalid(f"Endpoint: {endpoint[:300]!r} is not arn:aws:sqs:REGION:PROJECT:NAME")
        async with self._pool.connection() as connection:
            why = await plugins.load("destinations", "queue").refusal(connection, caller.project, endpoint, self._settings)
        if why:
            raise CallerError("AuthorizationError", f"{endpoint} cannot be subscribed: {why}")
        if not address.account.isdigit() and await queues.find(self._pool, address.account, address.queue) is None:
            raise invalid(f"Endpoint: there is no queue {endpoint}")

    async def _check_room(self, connection: AsyncConnection[Any], topic: str) -> None:
        most = self._settings.topics.max_subscriptions
        count = await (await connection.execute(statements.COUNT, [topic])).fetchone()
        if count is not None and count[0] >= most:
            raise CallerError("SubscriptionLimitExceeded", f"The topic has {most} subscriptions: it can have no more.")

    async def _find_subscription(self, arn: str) -> Subscription | None:
        found = await self._read(statements.READ_SUBSCRIPTION, [arn])
        return found[0] if found else None

    async def _read(self, statement: LiteralString, parameters: Sequence[Any]) -> list[Subscription]:
        async with borrowed(self._pool) as connection:
            rows = await (await connection.execute(statement, parameters)).fetchall()
            return [await subscription(connection, self._keyring, row) for row in rows]

    async def _sealed(self, connection: AsyncConnection[Any], arn: str, secrets_: Sequence[str]) -> bytes | None:
        if not secrets_:
            return None
        return await self._keyring.seal_async(connection, WEBHOOK_SECRETS, arn, " ".join(secrets_).encode())


async def subscription(connection: AsyncConnection[Any], ring: Keyring, row: Sequence[Any]) -> Subscription:
    arn, topic, project, protocol, endpoint, raw, sealed, authenticated, confirmed, version = row
    secrets_ = await ring.open_async(connection, WEBHOOK_SECRETS, arn, sealed) if sealed is not None else b""
    opened = tuple(secrets_.decode().split())
    return Subscription(arn, topic, project, protocol, endpoint, raw, opened, authenticated, confirmed, version)


async def _new_lane(connection: AsyncConnection[Any], values: Mapping[str, Any]) -> int:
    row = await (await connection.execute(statements.NEW_LANE, values)).fetchone()
    assert row is not None
    return int(row[0])


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _subscription_attributes(attributes: Mapping[str, str]) -> tuple[bool, tuple[str, ...]]:
    for name in attributes:
        if name not in ("RawMessageDelivery", "WebhookSecrets"):
            raise not_served(name)
    raw = model.boolean("RawMessageDelivery", attributes.get("RawMessageDelivery", "false"))
    return raw, model.webhook_secrets(attributes.get("WebhookSecrets", ""))
