"""The application that a worker process runs: S3, the services beside it, and three paths for whoever watches over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import psycopg
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from tidings import metrics, telemetry
from tidings.api import hosts, tracing
from tidings.api.aws import Aws, Front
from tidings.api.catalog import PREFIX as _CATALOG
from tidings.api.catalog import CatalogFront
from tidings.api.figures import HIDDEN, ApiFigures, may_read
from tidings.api.links import Links
from tidings.api.parts import Parts
from tidings.api.s3 import S3
from tidings.api.sns import Sns
from tidings.api.sqs import Sqs
from tidings.db.pool import make_pool
from tidings.rules.lookup import cache_for
from tidings.settings import Settings
from tidings.store.blobs import Blobs
from tidings.store.sweep import sweep_regularly
from tidings.subscribers import finding

_READY_SECONDS = 2.0
_OURS = "/-/"
_SERVICE = "tidings-serve"


def create_app(settings: Settings) -> ASGIApp:
    """An ASGI application. Pool and blobs are opened in its lifespan; the database need not answer yet."""
    return _App(settings)


class _App:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._parts: Parts | None = None
        self._s3: S3 | None = None
        self._aws: Aws | None = None
        self._links: Links | None = None
        self._catalog: CatalogFront | None = None
        self._figures: ApiFigures | None = None
        self._grpc = _grpc_front(settings)
        self._front: ASGIApp = self._serve
        self._asking: asyncio.Task[str] | None = None
        # "-" is no bucket's name, so these paths are nobody's object. Everything else is S3's: no other route, no
        # redirect, for a key may be any text.
        self._router = Router(
            [Route("/-/healthy", _healthy), Route("/-/ready", self._ready), Route("/-/metrics", self._metrics)],
            redirect_slashes=False,
            default=self._serve,
            lifespan=self._lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Past the router, which takes longer to find out that a path is not one of its own. And where the host names a
        # bucket, the whole path is a key: even these.
        ours = scope["type"] != "http" or (scope["path"].startswith(_OURS) and not scope["path"].startswith(_CATALOG))
        if not ours or (scope["type"] == "http" and self._is_in_host(scope)):
            await self._front(scope, receive, send)
        else:
            await self._router(scope, receive, send)

    def _is_in_host(self, scope: Scope) -> bool:
        return hosts.bucket(hosts.host(scope["headers"]), self._settings.api.domains) is not None

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        pool = make_pool(self._settings.database_url, self._settings.database.pool_size)
        blobs = Blobs(self._settings.store.blobs)
        cache = cache_for(self._settings.bucket_eventing)
        traces = telemetry.traces(self._settings.telemetry, _SERVICE)
        if traces is not None:
            self._front = tracing.Traced(self._serve, traces.tracer)
        subscribers = await asyncio.to_thread(finding.start, self._settings, traces.tracer if traces else None)
        await pool.open(wait=False)
        try:
            self._parts = Parts.over(self._settings, pool, blobs, cache, subscribers.publish)
            self._s3 = S3(self._parts)
            self._figures = ApiFigures(pool)
            self._aws = Aws(self._parts, _fronts(self._parts))
            self._links = Links(self._parts.subscriptions)
            self._catalog = CatalogFront(self._parts)
            sweeping = asyncio.create_task(sweep_regularly(pool, blobs, self._settings.store))
            queueing = asyncio.create_task(self._parts.queues.keep_up())
            async with self._grpc(self._parts):
                yield
            sweeping.cancel()
            queueing.cancel()
            await self._parts.queues.waiting.close()
            await self._parts.subscriptions.close()
        finally:
            await asyncio.to_thread(subscribers.stop)
            if cache is not None:
                await cache.close()
            await blobs.close()
            await pool.close()
            if traces is not None:
                await asyncio.to_thread(traces.close)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._s3 is not None
        assert self._aws is not None
        assert self._links is not None
        assert self._catalog is not None
        if scope["path"].startswith(_CATALOG) and not self._is_in_host(scope):
            await self._catalog(scope, receive, send)
            return
        if self._aws.serves(scope):
            await self._aws(scope, receive, send)
        elif self._links.serves(scope) and not self._is_in_host(scope):
            await self._links(scope, receive, send)
        else:
            await self._s3(scope, receive, send)

    async def _ready(self, _: Request) -> PlainTextResponse:
        """Whoever asks meanwhile gets the same answer: it needs no key, and takes one connection from the tenants."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._problem())
        if problem := await asyncio.shield(self._asking):
            return PlainTextResponse(f"{problem}\n", 503)
        return PlainTextResponse("ready\n")

    async def _problem(self) -> str:
        """Why no request could be served; empty if there is nothing."""
        assert self._parts is not None
        try:
            async with asyncio.timeout(_READY_SECONDS), self._parts.pool.connection(_READY_SECONDS) as connection:
                opens = await self._parts.keys.keyring.opens(connection)
        except (psycopg.Error, TimeoutError):
            return "the database does not answer"
        return "" if opens else "the secrets are under another master key: restart with it"

    async def _metrics(self, request: Request) -> Response:
        assert self._figures is not None
        if not may_read(self._settings.api.metrics, request.client.host if request.client else "", request.headers):
            return PlainTextResponse(HIDDEN, 404)
        return Response(await self._figures.shown(), media_type=metrics.CONTENT_TYPE)


def _fronts(parts: Parts) -> dict[str, Front]:
    """The services beside S3, by the name that a signature's scope has for them."""
    return {"sns": Sns(parts.topics, parts.subscriptions), "sqs": Sqs()}


def _grpc_front(settings: Settings) -> Callable[[Parts], AbstractAsyncContextManager[None]]:
    """Imported only where it is served, for it is 20 MB, and after the fork, which gRPC would not survive.

    Not as late as the lifespan: `server._load` puts aside what is loaded when the application is made.
    """
    if not settings.api.grpc_port:
        return lambda _: nullcontext()
    from tidings.api.grpc_server import serving

    return serving


async def _healthy(_: Request) -> PlainTextResponse:
    return PlainTextResponse("healthy\n")
