"""`tidings queues`: the queues of all projects. Tenants make and use them through the SQS API."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from tidings.cli.connection import database
from tidings.cli.printing import AsJson, err, out

app = typer.Typer(
    help="SQS-compatible queues. Tenants make them through the API, with `aws sqs` or boto3.", no_args_is_help=True
)


@app.command("list")
def list_(
    project: Annotated[str | None, typer.Option(help="Only of this project: its public id, or its name.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the queues: messages to be received, in flight and delayed, the oldest one's age, where dead letters go."""
    from tidings.access.projects import find_project
    from tidings.queues.listing import listed

    with database() as connection:
        rows = listed(connection, project and (find_project(connection, project) or project))
    if as_json:
        out.print(json.dumps(rows))
        return
    table = Table("project", "queue", "state", "visible", "in flight", "delayed", "oldest", "dead letters to", box=None)
    for row in rows:
        oldest = "" if row["oldest_seconds"] is None else f"{row['oldest_seconds']} s"
        target = f"{row['dead_letter']} after {row['max_receives']}" if row["dead_letter"] else ""
        numbers = (str(row[name]) for name in ("visible", "in_flight", "delayed"))
        table.add_row(row["project"], row["name"], _state(row["holds_dead_letters"], row["visible"]), *numbers, oldest, target)
    if rows:
        out.print(table)
    err.print(f"{len(rows)} queues")


def _state(holds_dead_letters: bool, visible: int) -> str:
    if holds_dead_letters:
        return "has dead letters" if visible else "for dead letters"
    return "waiting" if visible else "idle"
