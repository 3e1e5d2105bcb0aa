"""The webhook `POST /api/sns`, and three paths for whoever watches over it.

The order is the seed's: size and JSON, the topic (403, before any network call), the signature (401), the form of the event
(400), the buckets (403), paths and SHA-256 (400); then the registry. What is refused is logged; SNS sends again only what
failed with 5xx.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psycopg
from psycopg_pool import ConnectionPool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from tidings import metrics
from tidings.api import limits
from tidings.api.body import Body
from tidings.api.figures import HIDDEN, may_read
from tidings.consumers.files import registry
from tidings.consumers.files.authorising import allowed
from tidings.consumers.files.objects import Objects
from tidings.consumers.files.refusals import Failed, Invalid, Refusal, Unauthenticated, Unauthorised
from tidings.consumers.files.settings import FilesSettings
from tidings.consumers.files.taking import Taking
from tidings.db.connecting import noticing
from tidings.errors import CallerError
from tidings.outgoing.connecting import Caller
from tidings.outgoing.settings import OutgoingSettings
from tidings.outgoing.urls import Refused
from tidings.settings import Settings
from tidings.topics.verifying import (
    FETCH_SECONDS,
    MAX_BYTES,
    MAX_CERTIFICATE,
    Forged,
    Malformed,
    Unwanted,
    Verified,
    Verifier,
)

PATH = "/api/sns"
_log = logging.getLogger("tidings.files")
_POOL_SECONDS = 5.0
_STATEMENT_SECONDS = 30
_READY_SECONDS = 2.0
_ASKERS = 32
"""Heads of objects at once: a slow store holds up neither the database's work nor the question whether we are ready."""
_FORGET_SECONDS = 3600.0
_PORTS = {"http": 80, "https": 443}


def create_app(settings: Settings, calls: Caller | None = None) -> ASGIApp:
    """An ASGI application; the database need not answer yet. `calls` asks AWS for certificates and confirmations."""
    app = _App(settings, calls or caller(settings.files))
    return Router(
        [
            Route(PATH, app.receive, methods=["POST"]),
            Route("/-/healthy", _healthy),
            Route("/-/ready", app.ready),
            Route("/-/metrics", app.metrics),
        ],
        redirect_slashes=False,
        lifespan=app.lifespan,
    )


class _App:
    def __init__(self, settings: Settings, calls: Caller) -> None:
        self._settings = settings
        self._allowed = allowed(settings.files)
        self._caller = calls
        self._verifier = Verifier(self._allowed.topics, self._fetch, settings.files.trusted)
        size = settings.database.pool_size
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="files")
        self._askers = ThreadPoolExecutor(_ASKERS, thread_name_prefix="head")
        self._readiness = ThreadPoolExecutor(1, thread_name_prefix="ready")
        self._pool: ConnectionPool[Any] = ConnectionPool(
            noticing(settings.database_url),
            min_size=1,
            max_size=size,
            open=False,
            timeout=_POOL_SECONDS,
            configure=_configure,
            kwargs={"autocommit": True, "application_name": "tidings-files"},
        )
        awaits = settings.files.missing_sha256 == "await"
        objects = Objects(settings.files)
        self._taking = Taking(self._allowed, awaits, self._pool, objects, self._caller, self._threads, self._askers)

    @asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        await asyncio.to_thread(self._pool.open, False)
        forgetting = asyncio.create_task(self._forget_regularly())
        try:
            yield
        finally:
            forgetting.cancel()
            await self._caller.close()
            for threads in (self._askers, self._threads, self._readiness):
                await asyncio.to_thread(threads.shutdown)
            await asyncio.to_thread(self._pool.close)

    async def receive(self, request: Request) -> Response:
        limited = self._settings.limits
        body = Body(request.receive, request.scope["headers"], limited, limited.unproven_seconds)
        try:
            limits.enter(request.scope)
            message = await self._verified(request, await _whole(body, request))
            limits.admit(request.scope, message.topic)
            response: Response = JSONResponse(await self._taking.take(message))
        except Refusal as refusal:
            response = _refused(refusal, request)
        except CallerError as problem:
            response = JSONResponse({"error": problem.message}, problem.status, problem.headers)
        except Exception:
            _log.exception("a message could not be handled")
            response = JSONResponse({"error": "Internal error: see the log"}, 500)
        body.close()
        metrics.answered("files:Notify", response.status_code)
        return response

    async def _verified(self, request: Request, body: bytes) -> Verified:
        try:
            return await self._verifier.verify(body, request.headers.get("x-amz-sns-message-type"))
        except Malformed as error:
            raise Invalid(f"Not a message of SNS: {error}") from None
        except Unwanted as error:
            raise Unauthorised(f"Unauthorized SNS topic: {error}") from None
        except Forged as error:
            raise Unauthenticated(str(error)) from None

    async def _fetch(self, url: str) -> bytes:
        """A certificate. What a peer fails to answer is no sign of forgery: SNS must send the message again."""
        try:
            answer = await self._caller.get(url, FETCH_SECONDS, MAX_CERTIFICATE)
        except Refused as error:
            raise Forged(f"the certificate at {url} is not fetched: {error}") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Failed(f"The certificate at {url} cannot be fetched: {type(error).__name__} {error}"[:500]) from None
        if answer.status >= 500 or answer.status == 429:
            raise Failed(f"The certificate at {url} cannot be fetched: the answer was {answer.status}")
        if answer.status != 200:
            raise Forged(f"there is no certificate at {url}: the answer was {answer.status}")
        return answer.body

    async def ready(self, _: Request) -> Response:
        try:
            await asyncio.get_running_loop().run_in_executor(self._readiness, self._ask)
        except psycopg.Error:
            return PlainTextResponse("the database does not answer, or has no tables: run `tidings migrate`\n", 503)
        return PlainTextResponse("ready\n")

    async def metrics(self, request: Request) -> Response:
        if not may_read(self._settings.api.metrics, request.client.host if request.client else "", request.headers):
            return PlainTextResponse(HIDDEN, 404)
        return Response(metrics.exposition([]), media_type=metrics.CONTENT_TYPE)

    def _ask(self) -> None:
        with self._pool.connection(_READY_SECONDS) as connection:
            connection.execute("select from hat.files limit 0")

    async def _forget_regularly(self) -> None:
        while True:
            await asyncio.sleep(_FORGET_SECONDS)
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, self._forget)
            except psycopg.Error as error:
                _log.warning("old message ids are still there: %s", error)

    def _forget(self) -> None:
        with self._pool.connection() as connection:
            registry.forget_messages(connection)


def caller(settings: FilesSettings) -> Caller:
    """Calls AWS, and the installations that the operator trusts, although they may be on this machine."""
    places = []
    for url in settings.trusted:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        places.append(f"{host}:{parts.port or _PORTS[parts.scheme]}")
    http = any(url.startswith("http:") for url in settings.trusted)
    return Caller(OutgoingSettings(allow=tuple(places), allow_http=http))


def _configure(connection: psycopg.Connection[Any]) -> None:
    connection.execute(f"set statement_timeout = '{_STATEMENT_SECONDS}s'".encode())


async def _whole(body: Body, request: Request) -> bytes:
    """No more of it than a message can have."""
    content = bytearray()
    while not body.ended:
        content += await body.next()
        limits.hold(request.scope, len(content))
        if len(content) > MAX_BYTES:
            raise Invalid(f"Not a message of SNS: it has more than {MAX_BYTES} bytes")
    return bytes(content)


def _refused(refusal: Refusal, request: Request) -> Response:
    who = request.client.host if request.client else ""
    _log.warning("refused with %s: %s", refusal.status, refusal, extra={"status": refusal.status, "from": who})
    # Whoever forges learns nothing from us about how to do it better.
    words = "Invalid SNS signature" if isinstance(refusal, Unauthenticated) else str(refusal)
    return JSONResponse({"error": words}, refusal.status)


async def _healthy(_: Request) -> Response:
    return PlainTextResponse("healthy\n")
