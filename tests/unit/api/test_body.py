from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidings.api.body import Body
from tidings.api.limits import LimitSettings
from tidings.errors import CallerError

CHUNKED = [(b"transfer-encoding", b"chunked")]


class Client:
    """Sends these messages, and nothing more."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = list(messages)

    async def __call__(self) -> dict[str, Any]:
        if not self.messages:
            await asyncio.sleep(3600)
        return self.messages.pop(0)


def piece(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


async def everything(body: Body) -> bytes:
    data = b""
    while not body.ended:
        data += await body.next()
    return data


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"0")]])
def test_a_request_without_a_body_is_not_asked_for_one(headers: list[tuple[bytes, bytes]]) -> None:
    assert asyncio.run(everything(Body(Client(), headers))) == b""


def test_a_body_ends_with_the_last_byte_that_was_announced() -> None:
    client = Client(piece(b"abc"), piece(b"de"))
    assert asyncio.run(everything(Body(client, [(b"content-length", b"5")]))) == b"abcde"


def test_a_body_of_unknown_length_ends_with_its_last_piece() -> None:
    client = Client(piece(b"abc"), piece(b""), piece(b"de", more=False))
    assert asyncio.run(everything(Body(client, CHUNKED))) == b"abcde"


def test_a_client_that_goes_away_has_not_sent_a_whole_body() -> None:
    client = Client(piece(b"abc"), {"type": "http.disconnect"})
    with pytest.raises(CallerError, match="IncompleteBody"):
        asyncio.run(everything(Body(client, [(b"content-length", b"5")])))


def test_a_client_that_stalls_is_not_waited_for_for_ever() -> None:
    client = Client(piece(b"abc"))
    with pytest.raises(CallerError, match="RequestTimeout"):
        asyncio.run(everything(Body(client, [(b"content-length", b"5")], LimitSettings(idle_seconds=0.05))))


class Drip:
    """Sends a byte at a time, for ever."""

    async def __call__(self) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return piece(b"a")


@pytest.mark.parametrize(
    ("limits", "seconds", "sentence"),
    [
        (LimitSettings(idle_seconds=0.1, least_rate=10_000), None, "In 0.1 s only"),
        (LimitSettings(idle_seconds=3600, body_seconds=0.1), None, "within 0.1 s"),
        (LimitSettings(idle_seconds=3600), 0.1, "within 0.1 s"),
    ],
)
def test_a_body_that_trickles_is_given_up(limits: LimitSettings, seconds: float | None, sentence: str) -> None:
    with pytest.raises(CallerError, match=f"RequestTimeout.*{sentence}"):
        asyncio.run(everything(Body(Drip(), CHUNKED, limits, seconds)))


def test_a_body_that_keeps_its_least_rate_may_take_long() -> None:
    client = Client(*[piece(bytes(1024))] * 5, piece(b"", more=False))
    assert len(asyncio.run(everything(Body(client, CHUNKED, LimitSettings(idle_seconds=0.001, least_rate=1))))) == 5120


def test_the_rest_of_a_refused_body_is_taken_in_within_limits() -> None:
    small, large = Client(piece(b"a"), piece(b"b", more=False)), Client(*[piece(bytes(1 << 20))] * 12)
    asyncio.run(Body(small, CHUNKED).drain())
    asyncio.run(Body(large, CHUNKED).drain())
    assert len(small.messages) == 0
    assert len(large.messages) in (3, 4)  # 8 MiB were read, and one more piece may be on its way in


def test_one_piece_is_taken_in_while_another_is_worked_on_and_no_more() -> None:
    async def run() -> int:
        client = Client(*[piece(b"a")] * 5)
        body = Body(client, CHUNKED)
        await body.next()
        await asyncio.sleep(0.01)
        body.close()
        await asyncio.sleep(0.01)
        return len(client.messages)

    assert asyncio.run(run()) == 3


def test_who_waits_with_a_lot_to_send_is_not_told_to_start() -> None:
    expects = (b"expect", b"100-continue")
    for length, left in [(b"5", 0), (b"%d" % (9 << 20), 1)]:
        client = Client(piece(b"hello"))
        asyncio.run(Body(client, [expects, (b"content-length", length)]).drain())
        assert len(client.messages) == left


def test_draining_what_has_ended_or_gone_away_does_not_wait() -> None:
    async def run() -> None:
        async with asyncio.timeout(1):
            await Body(Client(), []).drain()
            await Body(Client({"type": "http.disconnect"}), CHUNKED).drain()

    asyncio.run(run())


def test_a_body_that_was_given_up_is_not_drained() -> None:
    async def given_up() -> None:
        body = Body(Client(piece(b"abc")), CHUNKED, LimitSettings(idle_seconds=0.01))
        with pytest.raises(CallerError, match="RequestTimeout"):
            await everything(body)
        await body.drain()

    asyncio.run(given_up())
