"""`tidings lanes`: how far each destination has got, and what an operator can do about it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from tidings.cli.acts import audited
from tidings.cli.connection import database
from tidings.cli.printing import AsJson, out, say

app = typer.Typer(no_args_is_help=True, help="Show how far each destination has got; pause, resume or skip.")

Lane = Annotated[int, typer.Argument(help="The lane's number: `tidings lanes list` shows it.", min=1)]


@app.command("list")
def list_(
    closed: Annotated[bool, typer.Option("--closed", help="Also lanes that no rule leads to any more.")] = False,
    as_json: AsJson = False,
) -> None:
    """Every lane: its state, its cursor, and what it is still owed."""
    from tidings.delivery import overview

    with database() as connection:
        listed = overview.lanes(connection, closed)
    if as_json:
        out.print(json.dumps(listed, default=str))
        return
    columns = ("lane", "project", "destination", "state", "cursor", "owed", "oldest", "tries", "dead", "error")
    table = Table(*columns, box=None)
    for lane in listed:
        cells = (lane["id"], lane["project"], _name(lane), lane["state"], lane["cursor"], lane["owed"], _age(lane))
        table.add_row(*map(str, cells), str(lane["attempts"]), str(lane["dead_letters"]), lane["error"] or "")
    out.print(table if listed else "no lanes: no bucket has a notification configuration yet")


def _name(lane: dict[str, Any]) -> str:
    if lane["backfill"]:
        return f"{lane['destination']} (backfill {lane['backfill']}: {lane['told']} told)"
    return f"{lane['destination']} (replay {lane['replay']})" if lane["replay"] else str(lane["destination"])


def _age(lane: dict[str, Any]) -> str:
    return f"{lane['seconds']:.1f} s" if lane["owed"] else ""


@app.command()
@audited("lanes pause", "lane")
def pause(lane: Lane, as_json: AsJson = False) -> None:
    """Send nothing more over a lane. What comes is kept, and delivered in order when it is resumed."""
    from tidings.delivery import steering

    with database() as connection:
        steering.pause(connection, lane)
    say(as_json, {"lane": lane, "state": "paused"}, f"lane {lane} is paused; `tidings lanes resume {lane}` lets it go on")


@app.command()
@audited("lanes resume", "lane")
def resume(lane: Lane, as_json: AsJson = False) -> None:
    """Let a paused lane go on from where it was."""
    from tidings.delivery import steering

    with database() as connection:
        state = steering.resume(connection, lane)
    say(as_json, {"lane": lane, "state": state}, f"lane {lane} goes on: it is served beside the stream")


@app.command()
@audited("lanes skip", "lane")
def skip(
    lane: Lane,
    to: Annotated[str, typer.Option(help="Up to this position, such as 12/3456, or time; the stream's own if not said.")] = "",
    note: Annotated[str, typer.Option(help="Why: it is kept, and `tidings explain` shows it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Move a lane that is behind or paused forward, without sending what lies between. That is written down."""
    from tidings.changestream.positions import bound
    from tidings.delivery import steering
    from tidings.events.positions import START

    with database() as connection:
        place = bound(connection, to, START) if to else None
        start, end = steering.skip(connection, lane, place, note)
    values = {"lane": lane, "from": str(start), "to": str(end)}
    say(as_json, values, f"lane {lane} skips what lies after {start} up to {end}")
