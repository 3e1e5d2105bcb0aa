"""The front as a process: granian, with the application in as many workers as the API has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import psycopg
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from tidings import log
from tidings.api import exposure
from tidings.consumers.uploads import places
from tidings.consumers.uploads.front import Front
from tidings.db.pool import make_pool
from tidings.secrets import keyring
from tidings.serving import check_free, die_with_parent, run
from tidings.settings import Settings

_READY_SECONDS = 2.0
_log = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; then finish what is under way, and return. Call it from the main thread."""
    log.to_stderr(settings)
    host, port = settings.uploads.host, settings.uploads.port
    check_free(host, port, "TIDINGS_UPLOADS__HOST", "TIDINGS_UPLOADS__PORT")
    keyring.check_at_start(settings.database_url, settings.secrets)
    places.s3(settings, _READY_SECONDS)  # one sentence here if there is no key
    for sentence in exposure.of_front("uploads front", host, "TIDINGS_UPLOADS__HOST"):
        _log.warning("%s", sentence)
    settings = settings.model_copy(update={"secrets": keyring.resolved(settings.secrets)})  # read once, not in each worker
    run(partial(_load, settings), host, port, settings.api.workers, settings.limits)


def _load(settings: Settings) -> ASGIApp:
    """What runs first in each worker."""
    die_with_parent()
    log.to_stderr(settings)
    return create_app(settings)


def create_app(settings: Settings) -> ASGIApp:
    """An ASGI application: the front, and two paths for whoever watches over it."""
    pool = make_pool(settings.database_url, settings.database.pool_size)
    front = Front(settings, pool)

    async def ready(_: Request) -> PlainTextResponse:
        try:
            async with asyncio.timeout(_READY_SECONDS), pool.connection(_READY_SECONDS) as connection:
                await connection.execute("select from upload_registry limit 0")
        except (psycopg.Error, TimeoutError):
            return PlainTextResponse("the database does not answer, or `tidings migrate` was not run\n", 503)
        return PlainTextResponse("ready\n")

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        await pool.open(wait=False)
        yield
        await pool.close()

    routes = [Route("/-/healthy", _healthy), Route("/-/ready", ready)]
    router = Router(routes, redirect_slashes=False, default=front, lifespan=lifespan)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await router(scope, receive, send)

    return app


async def _healthy(_: Request) -> PlainTextResponse:
    return PlainTextResponse("healthy\n")
