"""The audit log: administrative acts and changes of configuration, each with who, what, from where, and how it ended.

Whoever begins an act announces it (`audited`, or the commands' decorator). The statements that change something are run by
`run` and `transaction` of this module, which append the act's row: both are committed, or neither. What is refused changed
nothing, so its row is written by itself. No row has a secret: of what was asked only the target's name is kept.
"""

from __future__ import annotations

import logging
import os
import pwd
import socket
import time
import unicodedata
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection
from psycopg.rows import dict_row

from tidings.db import pool as pools
from tidings.db.pool import Pool
from tidings.errors import CallerError

OK = "ok"
BEGUN = "begun"
"""Of an act that takes its time: how it ended is another row."""
_MAX_TEXT = 300
_NO_TEXT = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of Unicode: control and format characters, halves of surrogate pairs, separators of lines."""
_MOST_REFUSALS = 60
"""Rows of refused acts in a minute, of one project in one process: whoever has any key could fill the log."""
_NOBODY_SIGNED_IN = 2**32 - 1
_log = logging.getLogger(__name__)

# A command names a project as its user did; the row has the public id.
_APPEND: LiteralString = """
insert into audit_log (project, actor, source, action, target, outcome, request)
values (coalesce((select public_id from projects where %(project)s in (name, public_id)
                  order by name = %(project)s desc limit 1), %(project)s),
        %(actor)s, %(source)s, %(action)s, %(target)s, %(outcome)s, %(request)s)
"""
_LIST: LiteralString = """
select id, at, project, actor, source, action, target, outcome, request from audit_log
where (%(project)s::text is null or project = %(project)s) and (%(since)s::timestamptz is null or at >= %(since)s)
  and starts_with(action, %(action)s)
order by id desc limit %(limit)s
"""


@dataclass(slots=True)
class Act:
    """Something that is being done. `written` once its row is committed, or if it needs none."""

    action: str
    actor: str
    source: str
    project: str | None = None
    target: str = ""
    request: str = ""
    written: bool = False

    def row(self, outcome: str) -> dict[str, str | None]:
        texts = {name: _plain(getattr(self, name)) for name in ("action", "actor", "source", "target", "request")}
        return {**texts, "project": None if self.project is None else _plain(self.project), "outcome": outcome}


def act_of_command(command: str, project: str | None = None, target: str = "") -> Act:
    """Done by a user of the operating system. The command's arguments are not kept: an API key may be among them."""
    return Act(command, _user(), f"{socket.gethostname()}: tidings {command}", project, target)


def _user() -> str:
    """Who runs this process. Not what the environment says of it: that is anybody's word, but for who called `sudo`, where the
    system has not kept who signed in."""
    user, signed_in = _name(os.getuid()), _signed_in()
    if signed_in is not None:
        return user if signed_in == user else f"{user}, signed in as {signed_in}"
    return f"{user}, by sudo of {before}" if (before := os.environ.get("SUDO_USER")) else user


def _name(uid: int) -> str:
    """In a container a user may have no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _signed_in() -> str | None:
    """Linux keeps it from the login on, through `sudo` and `su`."""
    try:
        uid = int(Path("/proc/self/loginuid").read_text())
    except (OSError, ValueError):
        return None
    return None if uid == _NOBODY_SIGNED_IN else _name(uid)


_current: ContextVar[Act | None] = ContextVar("act", default=None)


@contextmanager
def acting(act: Act) -> Iterator[Act]:
    """What is changed in this block is part of this act."""
    token = _current.set(act)
    try:
        yield act
    finally:
        _current.reset(token)


def current() -> Act | None:
    """The act whose row is still to be written."""
    act = _current.get()
    return None if act is None or act.written else act


def about(target: str, project: str | None = None) -> None:
    """What the act under way is about, where that is only known now. Never a secret."""
    if (act := _current.get()) is not None:
        act.target, act.project = target, project or act.project


def rolled_back() -> None:
    """What was written down of the act under way is not committed."""
    if (act := _current.get()) is not None:
        act.written = False


def only_looked() -> None:
    """The act under way changed nothing and was not meant to: it needs no row."""
    if (act := _current.get()) is not None:
        act.written = True


def append(connection: Connection[Any], act: Act, outcome: str = OK) -> None:
    """Write an act down, in whatever transaction the connection is in."""
    connection.execute(_APPEND, act.row(outcome))
    act.written = True


def append_current(connection: Connection[Any]) -> None:
    """The act under way, if there is one: with what is done in this transaction."""
    if (act := current()) is not None:
        append(connection, act)


async def append_current_async(connection: AsyncConnection[Any]) -> None:
    if (act := current()) is not None:
        await connection.execute(_APPEND, act.row(OK))
        act.written = True


class _Refusals:
    """How many refused acts of each project were written down in this minute."""

    def __init__(self) -> None:
        self._minute = 0
        self._counts: Counter[str] = Counter()

    def has_room(self, project: str) -> bool:
        if (minute := int(time.monotonic() // 60)) != self._minute:
            for name, count in self._counts.items():
                if (left_out := count - _MOST_REFUSALS) > 0:
                    _log.warning("%d refused acts of project %s are not in the audit log: there were too many", left_out, name)
            self._minute, self._counts = minute, Counter()
        self._counts[project] += 1
        return self._counts[project] <= _MOST_REFUSALS


_refusals = _Refusals()


@asynccontextmanager
async def audited(pool: Pool, act: Act) -> AsyncIterator[None]:
    """Write down what the block does: with what it changes, or by itself where it changes nothing or is refused."""
    with acting(act):
        try:
            yield
        except Exception as error:
            await _append_alone(pool, act, outcome_of(error))
            raise
        await _append_alone(pool, act, OK)


async def _append_alone(pool: Pool, act: Act, outcome: str) -> None:
    if act.written or (outcome != OK and not _refusals.has_room(act.project or "")):
        return
    try:
        await pools.run(pool, _APPEND, act.row(outcome))
    except psycopg.Error as error:
        _log.warning("not in the audit log: %s by %s from %s: %s (%s)", act.action, act.actor, act.source, outcome, error)


async def run(pool: Pool, statement: LiteralString, parameters: Sequence[Any] | Mapping[str, Any]) -> AsyncCursor[Any]:
    """Run one statement that changes a configuration. Where it changed nothing, its caller decides what that means."""
    act = current()
    if act is None:
        return await pools.run(pool, statement, parameters)
    async with pools.transaction(pool) as connection:
        done = await connection.execute(statement, parameters)
        if done.rowcount:
            await connection.execute(_APPEND, act.row(OK))
    act.written = bool(done.rowcount)
    return done


@asynccontextmanager
async def transaction(pool: Pool) -> AsyncIterator[AsyncConnection[Any]]:
    """Several statements that change a configuration, all or none."""
    act = current()
    async with pools.transaction(pool) as connection:
        yield connection
        if act is not None:
            await connection.execute(_APPEND, act.row(OK))
    if act is not None:
        act.written = True


def outcome_of(error: BaseException) -> str:
    """The code that a caller hears; for a command, the kind of error, or the code behind it."""
    for each in (error, error.__context__):
        if isinstance(each, CallerError):
            return each.code
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return "SlowDown"
    return type(error).__name__


def listed(
    connection: Connection[Any], project: str | None, since: datetime | None, action: str, limit: int
) -> list[dict[str, Any]]:
    """The newest acts first: of a project (its public id), since then, whose action begins with this."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(_LIST, {"project": project, "since": since, "action": action, "limit": limit}).fetchall()


def _plain(text: str) -> str:
    """As it is kept: what a terminal would obey, or show in another order, is written as an escape."""
    return "".join(
        each.encode("unicode_escape").decode() if unicodedata.category(each) in _NO_TEXT else each for each in text[:_MAX_TEXT]
    )
