"""`tidings project`: tenants."""

from __future__ import annotations

import json

import typer

from tidings.cli.connection import database
from tidings.cli.printing import AsJson, out

app = typer.Typer(help="Tenants.", no_args_is_help=True)


@app.command()
def create(name: str, as_json: AsJson = False) -> None:
    """Create a project; prints its public id."""
    from tidings.access.projects import create_project

    with database() as connection:
        public_id = create_project(connection, name)
    out.print(json.dumps({"project": public_id, "name": name}) if as_json else f"project {name}: {public_id}")
