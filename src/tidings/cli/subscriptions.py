"""`tidings subscriptions`: who is subscribed to the topics of all projects. Tenants subscribe through the SNS API."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from tidings.cli.connection import database
from tidings.cli.printing import AsJson, err, out

app = typer.Typer(
    help="Subscriptions of SNS-compatible topics. Tenants make them through the API, with `aws sns` or boto3.",
    no_args_is_help=True,
)


@app.command("list")
def list_(
    project: Annotated[str | None, typer.Option(help="Only to topics of this project: its public id, or its name.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the subscriptions: topic, endpoint, how messages are sent, and the state of the lane with its last error."""
    from tidings.access.projects import find_project
    from tidings.topics.listing import listed

    with database() as connection:
        rows = listed(connection, project and (find_project(connection, project) or project))
    if as_json:
        out.print(json.dumps(rows))
        return
    table = Table("topic", "endpoint", "sent as", "lane", "state", "error", box=None)
    for row in rows:
        sent_as = f"raw, {row['secrets']} secrets" if row["raw"] else "envelope"
        table.add_row(row["topic"], row["endpoint"], sent_as, str(row["lane"] or ""), row["state"], row["error"] or "")
    if rows:
        out.print(table)
    err.print(f"{len(rows)} subscriptions")
