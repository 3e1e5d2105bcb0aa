"""Commands that change something: the audit log has them, with the user of the operating system who gave them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from tidings import settings as settings_module
from tidings.errors import OperatorError, TidingsError

if TYPE_CHECKING:
    from tidings.audit import Act

P = ParamSpec("P")
ACTS: set[Callable[..., Any]] = set()
"""The commands that are acts."""


def audited(command: str, *target: str, when: str = "") -> Callable[[Callable[P, None]], Callable[P, None]]:
    """For a command that changes something. `target` are the names of the parameters that say what it is about; `when` is that
    of the option without which it only looks."""

    def decorate(work: Callable[P, None]) -> Callable[P, None]:
        @wraps(work)
        def run(*arguments: P.args, **given: P.kwargs) -> None:
            from tidings.audit import OK, act_of_command, acting, outcome_of

            if when and not given.get(when):
                return work(*arguments, **given)
            named = "/".join(str(given[name]) for name in target if given.get(name) is not None)
            project: Any = given.get("project")
            with acting(act_of_command(command, project, named)) as act:
                try:
                    work(*arguments, **given)
                except BaseException as error:  # also Ctrl-C, and a database that went away in between
                    _append(act, outcome_of(error))
                    raise
                _append(act, OK)

        ACTS.add(run)
        return run

    return decorate


def begin() -> None:
    """Write down that the act under way begins. For one that changes things one after another, and may be killed in between:
    it has a second row when it ends. Without the first row nothing is done."""
    from tidings.audit import BEGUN, current

    if (act := current()) is not None:
        if (problem := _problem_of_append(act, BEGUN)) is not None:
            raise OperatorError(f"The audit log cannot be written, so nothing was done: {problem}")
        act.written = False


def _append(act: Act, outcome: str) -> None:
    """By itself, where the command has no connection of its own, or was refused: then its own error is enough."""
    from tidings.audit import OK

    if not act.written and (problem := _problem_of_append(act, outcome)) is not None and outcome == OK:
        print(f"done, but not in the audit log: {problem}", file=sys.stderr)


def _problem_of_append(act: Act, outcome: str) -> str | None:
    from psycopg import Error

    from tidings.audit import append
    from tidings.db.connecting import connect_once

    try:
        with connect_once(settings_module.load().database_url) as connection:
            append(connection, act, outcome)
    except (TidingsError, Error) as error:
        return str(error).strip().splitlines()[0]
    return None
