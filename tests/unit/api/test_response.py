from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import pytest

from tidings.api import response
from tidings.api.response import Response


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 1000


async def silent() -> MutableMapping[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def test_who_takes_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "STALL_SECONDS", 0.05)  # only a shorter wait
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)
        if len(sent) > 3:
            await asyncio.Event().wait()

    asyncio.run(asyncio.wait_for(Response(200, {"content-length": "1000000"}, endless()).send(silent, send), 5))
    assert len(sent) == 4
    assert all(message.get("more_body", True) for message in sent), "what is not whole must not look so"


def test_a_long_answer_goes_out_in_pieces_and_is_not_over_before_the_last() -> None:
    body = bytes(range(256)) * 1000
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(Response(200, {}, body).send(silent, send))
    assert (b"content-length", b"256000") in sent[0]["headers"]
    assert b"".join(message["body"] for message in sent[1:]) == body
    assert max(len(message["body"]) for message in sent[1:]) <= 64 * 1024
    assert [message.get("more_body", False) for message in sent[1:]] == [True] * (len(sent) - 2) + [False]


def test_who_has_gone_is_not_read_for() -> None:
    async def gone() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_: MutableMapping[str, Any]) -> None:
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(Response(200, {"content-length": "1000000"}, endless()).send(gone, send), 5))
