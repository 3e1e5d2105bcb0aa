"""`tidings explain`: why did I not get an event for X?"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tidings import settings as settings_module
from tidings.cli.connection import database
from tidings.cli.printing import AsJson, out


def explain(
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="s3://BUCKET/KEY, s3://BUCKET/KEY?versionId=ID, or catalog://COMMIT.")
    ],
    project: Annotated[str, typer.Option(help="The project of the bucket, or of the catalog.")] = "default",
    as_json: AsJson = False,
) -> None:
    """Say what happened to an object, or in a commit, who wanted to hear of it, and what became of each message."""
    from tidings.delivery import explain as explaining
    from tidings.delivery.explain_commit import SCHEME

    if place.startswith(SCHEME):
        _commit(place, project, as_json)
        return
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
    for commit in change["commits"]:
        table = ".".join(commit["content_key"])
        out.print(f"  catalog: the table {table} names it since commit {commit['commit_hash']}")
    for rule in change["rules"]:
        name = f"rule {rule['id']}" if rule["id"] else f"rule number {rule['rule']}"
        if not rule["matched"]:
            out.print(f"  {name}: not wanted: {rule['why']}")
        elif rule["why"]:
            out.print(f"  {name}: {rule['why']}")
        for lane in rule["lanes"]:
            side = f", replay {lane['replay']}" if lane["replay"] else ""
            out.print(f"  {name}: lane {lane['lane']} to {lane['destination']} ({lane['state']}{side}): {lane['words']}")


def _commit(place: str, project: str, as_json: bool) -> None:
    from tidings.access.projects import existing_project
    from tidings.delivery.explain_commit import explain_commit

    with database() as connection:
        found = explain_commit(connection, existing_project(connection, project), place)
    if as_json:
        out.print(json.dumps(found, default=str))
        return
    out.print(f"commit {found['commit']}")
    for named in found["objects"]:
        change = f"its change {named['change']}" if named["change"] else "its change is not kept any more"
        object_ = f"s3://{named['bucket']}/{named['object_key']}"
        out.print(f"  the table {'.'.join(named['content_key'])} names {object_}: {change}")
    if not found["events"]:
        out.print("  no events: they are not kept any more, or the catalog had none then")
    for event in found["events"]:
        about = f" {event['content']}" if event["content"] else ""
        position = f"position {event['position']}" if event["position"] else "not read yet"
        out.print(f"{event['at']:%Y-%m-%d %H:%M:%S.%f} {event['type']}{about} on {event['reference']} ({position})")
        if not event["subscriptions"]:
            out.print("  nobody has subscribed to the catalog")
        for each in event["subscriptions"]:
            if not each["wanted"]:
                out.print(f"  subscription {each['name']}: not wanted: {each['why']}")
            elif not each["lanes"]:
                out.print(f"  subscription {each['name']}: its topic has no subscription")
            for lane in each["lanes"]:
                where = f"lane {lane['lane']} to {lane['destination']} ({lane['state']})"
                out.print(f"  subscription {each['name']}: {where}: {lane['words']}")
