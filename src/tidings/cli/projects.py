"""`tidings project`: tenants."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from tidings import settings as settings_module
from tidings.cli.acts import audited
from tidings.cli.connection import database
from tidings.cli.printing import AsJson, err, out

app = typer.Typer(help="Tenants.", no_args_is_help=True)


@app.command()
@audited("project create", "name")
def create(
    name: str,
    path_encryption: Annotated[
        bool, typer.Option("--path-encryption", help="Its keys are not readable here: it cannot have eventing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a project; prints its public id."""
    from tidings import audit
    from tidings.access.projects import create_project

    with database() as connection:
        public_id = create_project(connection, name, path_encryption)
        audit.about(name, public_id)
    out.print(json.dumps({"project": public_id, "name": name}) if as_json else f"project {name}: {public_id}")
    if not path_encryption and not settings_module.load().bucket_eventing.enabled(public_id):
        err.print(f"it has no eventing yet: add {public_id} to TIDINGS_BUCKET_EVENTING__PROJECTS")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the projects with their public ids, and whether they have eventing."""
    from tidings.access.projects import all_projects

    enabled = settings_module.load().bucket_eventing.enabled
    with database() as connection:
        found = all_projects(connection)
    rows = [{**each._asdict(), "eventing": enabled(each.public_id) and not each.path_encryption} for each in found]
    if as_json:
        out.print(json.dumps(rows, default=str))
        return
    table = Table("project", "name", "eventing", "path encryption", box=None)
    for row in rows:
        table.add_row(row["public_id"], row["name"], *("yes" if row[of] else "no" for of in ("eventing", "path_encryption")))
    if rows:
        out.print(table)
    err.print(f"{len(rows)} projects")
