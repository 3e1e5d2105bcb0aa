"""The server starts its subscribers, shows how they are doing, and lets them take what is queued when it stops."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from catalog_events import commit
from tidings.api.app import create_app
from tidings.catalog.model import Caller
from tidings.settings import Settings

FIGURE = 'tidings_subscriber_events_total{outcome="delivered",subscriber="log"} '


@asynccontextmanager
async def running(app: Any) -> AsyncIterator[None]:
    """The application as a server runs it, from its start to its end."""
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    serving = asyncio.create_task(app({"type": "lifespan", "state": {}}, told.get, said.put))
    await told.put({"type": "lifespan.startup"})
    assert (await asyncio.wait_for(said.get(), 60))["type"] == "lifespan.startup.complete"
    yield
    await told.put({"type": "lifespan.shutdown"})
    assert (await asyncio.wait_for(said.get(), 60))["type"] == "lifespan.shutdown.complete"
    await serving


def delivered(figures: str) -> float:
    return next(float(line.removeprefix(FIGURE)) for line in figures.splitlines() if line.startswith(FIGURE))


def test_a_server_has_its_subscribers_from_its_start_to_its_end(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve() -> None:
        app: Any = create_app(
            Settings(
                database={"url": database_url},
                store={"blobs": f"file://{tmp_path}"},
                subscribers={"log": True},
                api={"metrics": "loopback"},
            )
        )
        async with (
            running(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client,
        ):
            before = delivered((await client.get("/-/metrics")).text)
            app._parts.catalog._tell([commit(), commit()], Caller())
            async with asyncio.timeout(60):
                while delivered((await client.get("/-/metrics")).text) != before + 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            app._parts.catalog._tell([commit()], Caller())

    with caplog.at_level(logging.INFO):
        asyncio.run(serve())
    assert "subscriber log hears of catalog events: everything" in caplog.text
    assert sum(record.name == "tidings.catalog.events" for record in caplog.records) == 3
    assert not [thread for thread in threading.enumerate() if thread.name in ("subscribers", "subscriber-log")]
