"""The handshake: an endpoint is asked whether it wants messages before it gets any, and told when it gets no more.

Nobody who subscribes waits for an endpoint: it is asked in the background, three times at most. Whoever missed it subscribes
again.
"""

from __future__ import annotations

import asyncio
import logging
import time

from tidings.db.pool import Pool
from tidings.events.messages import Outcome, Verdict
from tidings.outgoing.connecting import Caller, caller
from tidings.settings import Settings
from tidings.topics import envelope, signing
from tidings.topics.envelope import CONFIRMATION, FAREWELL
from tidings.topics.model import Subscription
from tidings.topics.posting import post
from tidings.topics.signing import Signer

log = logging.getLogger(__name__)

_WAITS = (0.0, 2.0, 8.0)
_TIMEOUT_SECONDS = 5.0
_MAX_UNDER_WAY = 1000


class Confirming:
    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._settings = settings
        self._pool = pool
        self._caller: Caller | None = None
        self._signer: Signer | None = None
        self._signer_until = 0.0
        self._certificates: dict[str, bytes] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def ask(self, joining: bool, subscription: Subscription, token: str) -> None:
        """Send the confirmation of a subscription, or of its end; returns at once."""
        type_ = CONFIRMATION if joining else FAREWELL
        if len(self._under_way) >= _MAX_UNDER_WAY:
            log.warning("too many confirmations are under way: %s gets none", subscription.arn)
            return
        task = asyncio.create_task(self._ask(type_, subscription, token))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _ask(self, type_: str, subscription: Subscription, token: str) -> None:
        outcome = Outcome(Verdict.RETRY)
        try:
            for wait in _WAITS:
                await asyncio.sleep(wait)
                outcome = await self._send(type_, subscription, token)
                if outcome.verdict is not Verdict.RETRY:
                    break
        except Exception:  # a task of its own: nobody else would say it
            log.exception("no %s was sent for %s", type_, subscription.arn)
            return
        if outcome.verdict is not Verdict.SENT:
            log.info("%s does not take its %s: %s", subscription.arn, type_, outcome.reason)

    async def _send(self, type_: str, subscription: Subscription, token: str) -> Outcome:
        if self._caller is None:
            self._caller = caller(self._settings)
        signer = await self.signer()
        topic, version = subscription.topic, subscription.signature_version
        id_, body = envelope.confirmation(signer, version, type_, topic, token, self._settings.api.url)
        headers = {
            "content-type": "text/plain; charset=UTF-8",
            "x-amz-sns-message-type": type_,
            "x-amz-sns-message-id": id_,
            "x-amz-sns-topic-arn": topic,
        }
        return await post(self._caller, subscription.endpoint, body, headers, _TIMEOUT_SECONDS)

    async def certificate(self, path: str) -> bytes | None:
        """The certificate that is served under a path: of the key in use, or of one before it."""
        if path not in self._certificates:
            signer = await self.signer()
            self._certificates[signing.certificate_path(signer.certificate)] = signer.certificate
        if path not in self._certificates:
            async with self._pool.connection() as connection:
                found = await signing.find_certificate(connection, path)
            if found is None:
                return None
            self._certificates[path] = found
        return self._certificates[path]

    async def signer(self) -> Signer:
        if self._signer is None or time.monotonic() >= self._signer_until:
            async with self._pool.connection() as connection:
                self._signer = await signing.load(connection, self._settings, self._signer)
            self._signer_until = time.monotonic() + signing.FRESH_SECONDS
        return self._signer

    async def close(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        if self._caller is not None:
            await self._caller.close()
