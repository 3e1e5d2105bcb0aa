"""`tidings explain`: why did I not get an event for X?"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tidings import settings as settings_module
from tidings.cli.connection import database
from tidings.cli.printing import AsJson, out


def explain(
    place: Annotated[str, typer.Argument(metavar="S3-URL", help="s3://BUCKET/KEY, or s3://BUCKET/KEY?versionId=ID.")],
    project: Annotated[str, typer.Option(help="The project of the bucket.")] = "default",
    as_json: AsJson = False,
) -> None:
    """Say what happened to an object, which rules wanted it, and what became of each message."""
    from tidings.delivery import explain as explaining

    settings = settings_module.load()
    with database() as connection:
        literal = settings.bucket_eventing.dialect.literal_filters
        found = explaining.explain(connection, project, explaining.Place.parse(place), literal)
    if as_json:
        out.print(json.dumps(found, default=str))
        return
    if not found["changes"]:
        kept = f"in the last {settings.changestream.retention_hours:g} hours"
        where = "" if found["bucket_exists"] else f": project {project!r} has no bucket {found['bucket']!r}"
        out.print(f"no change of {place} {kept}{where}")
        eventing = "a project without eventing keeps no changes: see bucket_eventing.projects in `tidings settings`"
        out.print(f"  it was not written through this store, or longer ago, or under another key; {eventing}")
        return
    for change in found["changes"]:
        _print(change)


def _print(change: dict[str, Any]) -> None:
    version = f" version {change['version']}" if change["version"] else ""
    position = f"position {change['position']}" if change["position"] else "not read yet"
    out.print(f"{change['at']:%Y-%m-%d %H:%M:%S.%f} {change['event']}{version} ({position})")
    if change["unread"]:
        out.print("  the rules could not be read when it was written: the stream decided")
    if not change["rules"]:
        out.print("  the bucket has no rule")
    for rule in change["rules"]:
        name = f"rule {rule['id']}" if rule["id"] else f"rule number {rule['rule']}"
        if not rule["matched"]:
            out.print(f"  {name}: not wanted: {rule['why']}")
        elif rule["why"]:
            out.print(f"  {name}: {rule['why']}")
        for lane in rule["lanes"]:
            side = f", replay {lane['replay']}" if lane["replay"] else ""
            out.print(f"  {name}: lane {lane['lane']} to {lane['destination']} ({lane['state']}{side}): {lane['words']}")
