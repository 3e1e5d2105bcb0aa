"""`tidings dead-letters`: messages that no retry could help."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tidings import settings as settings_module
from tidings.cli.acts import audited, begin
from tidings.cli.connection import database
from tidings.cli.printing import AsJson, out, progress_bar, say
from tidings.errors import OperatorError

if TYPE_CHECKING:
    from psycopg import Connection

app = typer.Typer(no_args_is_help=True, help="Messages that no retry could help: see why, send them again, or discard them.")

Lane = Annotated[int | None, typer.Option(help="Only those of this lane.", min=1)]
Ids = Annotated[list[int] | None, typer.Argument(help="Their numbers: `tidings dead-letters list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="All of them, or all of the lane.")]

_MOST = 1_000_000


@app.command("list")
def list_(
    lane: Lane = None,
    ended: Annotated[bool, typer.Option("--ended", help="Also those that were sent again or discarded.")] = False,
    limit: Annotated[int, typer.Option(help="How many at most.", min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """Dead letters, and ranges that were archived because a lane was behind for longer than changes are kept."""
    from tidings.delivery import archive, dead_letters

    with database() as connection:
        letters = dead_letters.listed(connection, lane, None if ended else "dead", limit)
        ranges = archive.listed(connection, lane, ended)
        total = dead_letters.count(connection, lane)
    if as_json:
        shown = [{name: value for name, value in letter.items() if name not in ("body", "attributes")} for letter in letters]
        out.print(json.dumps({"dead": total, "letters": shown, "ranges": ranges}, default=str))
        return
    table = Table("id", "lane", "destination", "object", "event", "since", "reason", box=None)
    for letter in letters:
        place = f"{letter['bucket']}/{letter['key']}" if letter["bucket"] else letter["message"]
        state = "" if letter["state"] == "dead" else f" ({letter['state']})"
        when = f"{letter['died_at']:%Y-%m-%d %H:%M:%S}"
        cells = (letter["id"], letter["lane"], letter["destination"], place, letter["event"] or "", when)
        table.add_row(*map(str, cells), letter["reason"] + state)
    for each in ranges:
        what = f"{each['n']} changes, {each['from']} to {each['to']}"
        when = f"{each['at']:%Y-%m-%d %H:%M:%S}"
        table.add_row(
            f"range {each['id']}", str(each["lane"]), each["destination"], what, "", when, f"archived: {each['state']}"
        )
    out.print(table if letters or ranges else "no dead letters")
    if total > len(letters) and not ended:
        out.print(f"{len(letters)} of {total}: --limit shows more")


@app.command()
def show(
    id_: Annotated[int, typer.Argument(metavar="ID", help="Its number: `tidings dead-letters list` shows it.")],
    as_json: AsJson = False,
) -> None:
    """One dead letter with everything that was to be sent."""
    from tidings.delivery import dead_letters

    with database() as connection:
        letter = dead_letters.one(connection, id_)
    if letter is None:
        raise OperatorError(f"There is no dead letter {id_}: `tidings dead-letters list` shows them.")
    if as_json:
        out.print(json.dumps(letter, default=str))
        return
    for name, value in letter.items():
        if name not in ("body", "attributes"):
            out.print(f"{name:12} {value}")
    for name, value in letter["attributes"].items():
        out.print(f"attribute    {name}: {value}")
    out.print(letter["body"])


@app.command()
@audited("dead-letters redrive")
def redrive(
    ids: Ids = None,
    lane: Lane = None,
    all_: All = False,
    archived: Annotated[int | None, typer.Option("--range", help="Send a range that was archived.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Send dead letters again. What is taken is dead no longer; what is refused stays, with the words of its destination."""
    from tidings import audit, bootstrap
    from tidings.delivery.redrive import redrive as send_again

    audit.about(_named(ids, lane, all_, archived))
    settings = settings_module.load()
    if archived is not None:
        begin()
        with progress_bar("starting Spark", "sending again") as show_progress:
            count = bootstrap.redrive_archive(settings, archived, show_progress)
        say(as_json, {"range": archived, "sent": count}, f"range {archived}: {count} messages sent")
        return
    with database() as connection:
        letters = _chosen(connection, ids, lane, all_)
        begin()
        with progress_bar("sending again", "sending again") as show_progress:
            done = send_again(connection, settings, letters, show_progress or (lambda *_: None))
    words = f"{done.sent} dead letters sent, {done.left} refused again"
    reasons = "".join(f"\n{number} x {reason}" for reason, number in done.reasons.items())
    say(as_json, {"sent": done.sent, "left": done.left, "reasons": done.reasons}, words + reasons)
    if done.left:
        raise typer.Exit(1)


@app.command()
@audited("dead-letters discard")
def discard(
    ids: Ids = None,
    lane: Lane = None,
    all_: All = False,
    archived: Annotated[int | None, typer.Option("--range", help="Discard a range that was archived.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Give dead letters up. They stay in the list of those that ended until their retention is over."""
    from tidings import audit
    from tidings.delivery import archive, dead_letters

    audit.about(_named(ids, lane, all_, archived))
    if archived is not None:
        with database() as connection:
            left = archive.discard(connection, archived)
        files = f"its files are not on this machine, remove them: {left}" if left else "its files are removed"
        say(as_json, {"discarded": 1, "files_left": left}, f"range {archived} discarded; {files}")
        return
    with database() as connection:
        number = dead_letters.end(connection, [letter["id"] for letter in _chosen(connection, ids, lane, all_)], "discarded")
    say(as_json, {"discarded": number}, f"{number} discarded")


def _named(ids: list[int] | None, lane: int | None, all_: bool, archived: int | None) -> str:
    """For the audit log."""
    if archived is not None:
        return f"range {archived}"
    return ", ".join(map(str, ids)) if ids else f"lane {lane}" if lane is not None else "all" if all_ else ""


def _chosen(connection: Connection, ids: list[int] | None, lane: int | None, all_: bool) -> list[dict[str, Any]]:
    from tidings.delivery import dead_letters

    if bool(ids) == (all_ or lane is not None):
        raise OperatorError("Say which: numbers, or --lane LANE, or --all.")
    letters = dead_letters.listed(connection, lane, "dead", _MOST)
    if not ids:
        return letters
    found = {letter["id"]: letter for letter in letters}
    missing = [str(id_) for id_ in ids if id_ not in found]
    if missing:
        raise OperatorError(f"No dead letter {', '.join(missing)}: `tidings dead-letters list` shows them.")
    return [found[id_] for id_ in sorted(ids)]
