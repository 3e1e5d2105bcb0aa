"""Operations that tell of what they did. They go on where the rules cannot be read: the stream decides then."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import psycopg

from tidings import metrics
from tidings.events.changes import UNREAD
from tidings.rules.model import Eventing
from tidings.store.model import Origin

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# A right that was taken away, a page that cannot be read, nonsense in the cache. Not a lost connection, a wait that took too
# long or a constraint: that can be the write's own, and to try it again would double what its caller waits for.
_UNREADABLE = (psycopg.ProgrammingError, psycopg.InternalError, psycopg.DataError)


def transmitting(operation: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Run an operation of the store; if that fails but would not without the rules, run it without (seed 000, step 3).

    Nothing has happened by then: an operation is one transaction.
    """

    @wraps(operation)
    async def careful(*args: P.args, **kwargs: P.kwargs) -> T:
        origin = next(each for each in (*args, *kwargs.values()) if isinstance(each, Origin))
        try:
            done = await operation(*args, **kwargs)
        except psycopg.errors.CheckViolation:  # a partition was made under a change that was on its way to the default one
            done = await operation(*args, **kwargs)
        except _UNREADABLE as error:
            done = await operation(*map(_unread, args), **{name: _unread(value) for name, value in kwargs.items()})
            words = "the rules could not be read, so a change was transmitted for the stream to decide: %s"
            log.error(words, error, extra={"request_id": origin.request_id})
            metrics.lookup_failed("database")
        _count(origin.eventing, done)
        return done

    return careful


def _count(eventing: Eventing, done: Any) -> None:
    if not eventing.recorded:
        metrics.decided("not_enabled")
        return
    for each in done if isinstance(done, list) else [done]:
        for rules in each.rules:
            metrics.decided("unread" if rules == UNREAD else "transmitted" if rules else "unmatched")


def _unread(argument: Any) -> Any:
    if isinstance(argument, Origin):
        return argument._replace(eventing=argument.eventing._replace(source="unread"))
    return argument
