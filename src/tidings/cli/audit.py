"""`tidings audit`: who changed what, from where, and how it ended."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table

from tidings.cli.connection import database
from tidings.cli.printing import AsJson, err, out

app = typer.Typer(help="Who changed what, from where, and how it ended.", no_args_is_help=True)


@app.command("list")
def list_(
    project: Annotated[str | None, typer.Option(help="Only acts that concern this project: public id or name.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only acts since this time (UTC).")] = None,
    action: Annotated[str, typer.Option(help="Only actions that begin with this: s3:, sns:Subscribe, access.")] = "",
    limit: Annotated[int, typer.Option(help="How many at most.", min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """Administrative acts and changes of configuration, the newest first."""
    from tidings import audit
    from tidings.access.projects import find_project

    moment = None if since is None else since.replace(tzinfo=since.tzinfo or UTC)
    with database() as connection:
        of = project and (find_project(connection, project) or project)
        rows = audit.listed(connection, of, moment, action, limit)
    if as_json:
        out.print(json.dumps(rows, default=datetime.isoformat))
        return
    table = Table("at", "project", "who", "from", "action", "target", "outcome", box=None)
    for row in rows:
        cells = (row["project"] or "", row["actor"], row["source"], row["action"], row["target"], row["outcome"])
        table.add_row(f"{row['at'].astimezone(UTC):%Y-%m-%d %H:%M:%S}", *cells)
    if rows:
        out.print(table)
    err.print(f"{len(rows)} acts")
