"""One POST to a webhook, and what its answer means."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import aiohttp

from tidings.events.messages import SENT, Outcome, Verdict
from tidings.outgoing.connecting import Answer, Caller
from tidings.outgoing.urls import Refused

_RETRY = frozenset({408, 425, 429})
_REJECTED = frozenset({400, 413, 415, 422})
_MARGIN = 0.9
"""The part of the time that an endpoint has: what others have answered by then must not be lost with who has not."""
_MAX_WORDS = 300
_MAX_AFTER = 3600.0
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


async def post(caller: Caller, url: str, body: bytes, headers: Mapping[str, str], timeout: float) -> Outcome:
    try:
        return verdict(await caller.post(url, body, headers, timeout * _MARGIN))
    except Refused as refused:
        return Outcome(Verdict.WAIT, str(refused))
    except TimeoutError:
        return Outcome(Verdict.RETRY, f"no answer within {timeout:g} s")
    except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
        return Outcome(Verdict.RETRY, f"{type(error).__name__}: {error}"[:_MAX_WORDS])


def verdict(answer: Answer) -> Outcome:
    """The table of HTTP.

    Redirects and refusals wait in the lane until somebody acts: so do all other 4xx, for a message that may still be wanted is
    never thrown away because of a status that says nothing about the message.
    """
    status = answer.status
    if 200 <= status < 300:
        return SENT
    if status in _REJECTED:
        return Outcome(Verdict.REJECTED, _words(answer))
    if status in _RETRY or status >= 500 or status < 200:
        return Outcome(Verdict.RETRY, _words(answer), _after(answer.headers.get("retry-after", "")))
    return Outcome(Verdict.WAIT, _words(answer))


def _words(answer: Answer) -> str:
    try:
        phrase = f"{answer.status} {HTTPStatus(answer.status).phrase}"
    except ValueError:
        phrase = str(answer.status)
    said = _BREAKS.sub(" ", answer.body[: 2 * _MAX_WORDS].decode(errors="replace")).strip()
    return f"{phrase}: {said}"[:_MAX_WORDS] if said else phrase


def _after(value: str) -> float | None:
    """Retry-After in seconds: it is a number, or a date. An hour at most: who wants longer is asked again."""
    value = value.strip()
    try:
        seconds = (
            float(value) if value.isascii() and value.isdigit() else parsedate_to_datetime(value).timestamp() - time.time()
        )
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), _MAX_AFTER)
