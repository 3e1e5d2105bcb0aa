"""`tidings replay`: send changes of the past again."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.acts import audited
from tidings.cli.connection import database
from tidings.cli.printing import AsJson, err, progress_bar, say
from tidings.errors import OperatorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 30.0


@audited("replay", "rule")
def replay(
    rule: Annotated[str, typer.Option(help="The rule's id, or BUCKET/ID: `tidings rules list` shows them.")],
    start: Annotated[str, typer.Option("--from", help="From this time or position on; from the oldest if not said.")] = "",
    to: Annotated[
        str, typer.Option("--to", help="Up to this time or position; up to what its lane has sent, if not said.")
    ] = "",
    prefix: Annotated[str, typer.Option(help="Only keys that begin with this.")] = "",
    project: Annotated[str, typer.Option(help="The project of the rule.")] = "default",
    rate: Annotated[float | None, typer.Option(help="Messages a second at most.", min=0.1)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how much there is.")] = False,
    wait: Annotated[bool, typer.Option(help="Stay until it is through. It goes on without us as well.")] = True,
    as_json: AsJson = False,
) -> None:
    """Send changes of the past to one rule again. Live events go on; what is sent again has the attribute `replay`.

    Times are ISO 8601; what counts is when a change was read for delivery. The message ids are those of the first time.
    """
    from tidings import audit
    from tidings.delivery import replays

    with database() as connection:
        connection.autocommit = True
        found = replays.find_rule(connection, project, rule)
        parts = replays.plan(connection, found, start or None, to or None, prefix)
        wanted = sum(part.wanted for part in parts)
        values: dict[str, Any] = {
            "rule": found.config_id,
            "bucket": found.bucket,
            "wanted": wanted,
            "lanes": [
                {"lane": p.of_lane, "destination": p.destination, "from": str(p.start), "to": str(p.until), "wanted": p.wanted}
                for p in parts
            ],
        }
        if dry_run or not wanted:
            audit.only_looked()
            say(as_json, values, f"{wanted} changes for rule {found.config_id} of {found.bucket}; nothing was sent")
            return
        with connection.transaction():
            number = replays.begin(connection, found, parts, prefix, rate)
            audit.append_current(connection)
        done = _watch(connection, number) if wait else replays.progress(connection, number)
    words = f"replay {number}: {done['sent']} messages sent, {done['dead_letters']} dead letters"
    say(as_json, values | {"replay": number} | done, words if done["ended"] else f"replay {number} of {wanted} changes goes on")


def _watch(connection: Connection, number: int) -> dict[str, Any]:
    from tidings.delivery import replays

    with progress_bar("waiting for the stream", "sending again") as show:
        try:
            return until_ended(lambda: replays.progress(connection, number), show, "replay")
        except KeyboardInterrupt:
            err.print("not waiting any longer; the replay goes on: `tidings lanes list` shows it")
            return replays.progress(connection, number)


def until_ended(look: Callable[[], dict[str, Any]], show: Callable[[int, int], None] | None, what: str) -> dict[str, Any]:
    """Look again and again until it has ended: the last look. Says what it waits for."""
    said, served = "", time.monotonic()
    while True:
        done = look()
        if show:
            show(done["sent"], done["wanted"])
        if done["ended"]:
            return done
        if done["error"] and done["error"] != said:
            said = done["error"]
            err.print(f"it waits: {said}")
        served = time.monotonic() if done["served"] else served
        if time.monotonic() - served > _PATIENCE_SECONDS:
            raise OperatorError(
                f"No stream is running that could send: start `tidings stream`, and the {what} goes on by itself."
            )
        sys.stderr.flush()
        time.sleep(_LOOK_SECONDS)
