"""`tidings bucket`: what the S3 API does not offer."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings import settings as settings_module
from tidings.cli.acts import audited, begin
from tidings.cli.printing import AsJson, counting, say

app = typer.Typer(help="Buckets, beyond what the S3 API offers.", no_args_is_help=True)

Project = Annotated[str, typer.Option("--project", help="The project's name or public id.")]


@app.command()
@audited("bucket empty", "name")
def empty(name: str, project: Project, as_json: AsJson = False) -> None:
    """Remove every version of every object. Each removal is a change, and reaches who asked for it."""
    from tidings import bootstrap

    begin()
    removed = bootstrap.empty_bucket(settings_module.load(), project, name, counting("removed"))
    say(as_json, {"bucket": name, "keys": removed}, f"bucket {name} is empty: {removed} keys removed with all their versions")


@app.command()
@audited("bucket delete", "name")
def delete(
    name: str,
    project: Project,
    force: Annotated[bool, typer.Option(help="Empty it first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a bucket."""
    from tidings import bootstrap

    if force:
        begin()
    removed = bootstrap.delete_bucket(settings_module.load(), project, name, force, counting("removed"))
    say(as_json, {"bucket": name, "keys": removed}, f"bucket {name} is deleted, with {removed} keys")
