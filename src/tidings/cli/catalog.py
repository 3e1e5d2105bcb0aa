"""`tidings catalog`: who gets the events of a project's catalog by the durable path."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from tidings import settings as settings_module
from tidings.cli.acts import audited
from tidings.cli.connection import database
from tidings.cli.printing import AsJson, err, out, say
from tidings.cli.rules import mistakes
from tidings.errors import OperatorError

app = typer.Typer(help="Who gets the events of a project's catalog.", no_args_is_help=True)

Project = Annotated[str, typer.Option(help="The project that the catalog belongs to: its name or public id.")]
Name = Annotated[str, typer.Argument(help="What the subscription is called.")]

_LISTED = """
select p.name, s.name, s.destination, coalesce(s.types, '{}'), coalesce(s.filter, ''), s.format, l.id, l.state, l.error,
       coalesce(u.times, 0), u.reason, u.at::text
from catalog_subscriptions s join projects p on p.public_id = s.project left join lanes l on l.id = s.lane
left join unanswered_filters u on u.rule = s.rule
where %(project)s::text is null or s.project = %(project)s
order by p.name, s.name
"""
_COLUMNS = (
    *("project", "name", "destination", "types", "filter", "format", "lane", "state", "error"),
    *("unanswered", "unanswered_reason", "unanswered_at"),
)


@app.command()
@audited("catalog subscribe", "name")
def subscribe(
    name: Name,
    to: Annotated[str, typer.Option(help="Where events go, as an ARN: arn:tidings:kafka::CLUSTER:TOPIC, for one.")],
    project: Project = "default",
    type_: Annotated[
        list[str] | None, typer.Option("--type", help="COMMIT and so on; again for more; all if not said.")
    ] = None,
    filter_: Annotated[str, typer.Option("--filter", help="Only events for which this is true, in CEL.")] = "",
    format_: Annotated[str, typer.Option("--format", help="nessie, or cloudevents.")] = "nessie",
    as_json: AsJson = False,
) -> None:
    """Send the events of a project's catalog to a destination, which gets a test event first.

    One of the same name is replaced.
    """
    from tidings import bootstrap
    from tidings.cel.translatable import why_not
    from tidings.rules.catalog_subscriptions import Subscription

    with mistakes():
        wanted = Subscription(name, to, tuple(type_ or ()), filter_, format_)
        bootstrap.subscribe_to_catalog(settings_module.load(), project, wanted)
    reason = why_not(filter_) if filter_ else None
    slower = f"; its filter is evaluated over batches, for it has {reason}" if reason else ""
    say(as_json, wanted.to_json(), f"{name} gets the events of the catalog of {project}, at {to}{slower}")


@app.command()
@audited("catalog unsubscribe", "name")
def unsubscribe(name: Name, project: Project = "default", as_json: AsJson = False) -> None:
    """End a subscription. What it was still owed is discarded."""
    from tidings.access.projects import existing_project

    with database() as connection:
        public_id = existing_project(connection, project)
        gone = connection.execute("delete from catalog_subscriptions where (project, name) = (%s, %s)", [public_id, name])
        if not gone.rowcount:
            raise OperatorError(f"{project} has no subscription {name!r}: `tidings catalog subscriptions` lists them.")
    say(as_json, {"name": name}, f"{name} gets no more events of the catalog of {project}")


@app.command("subscriptions")
def list_(
    project: Annotated[str | None, typer.Option(help="Only this project's: its name or public id.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the subscriptions, each with its filter and the state of its lane. To a topic, its subscribers have the lanes.

    `unanswered` counts events for which a filter had no answer.
    """
    from tidings.access.projects import existing_project

    with database() as connection:
        public_id = None if project is None else existing_project(connection, project)
        rows = connection.execute(_LISTED, {"project": public_id}).fetchall()
    if as_json:
        out.print(json.dumps([dict(zip(_COLUMNS, row, strict=True)) for row in rows]))
        return
    table = Table(*_COLUMNS, box=None)
    for row in rows:
        table.add_row(*(", ".join(each) if isinstance(each, list) else str(each or "") for each in row))
    if rows:
        out.print(table)
    err.print(f"{len(rows)} subscriptions")
