"""`tidings rules`: who wants which changes, and what a rule would do before anybody sets it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tidings import settings as settings_module
from tidings.cli.acts import audited
from tidings.cli.connection import database
from tidings.cli.printing import AsJson, err, out, progress_bar, say
from tidings.errors import CallerError, OperatorError

if TYPE_CHECKING:
    from tidings.delivery.plan import Found, Tally
    from tidings.events.profiles import Profile
    from tidings.rules.draft import Draft
    from tidings.rules.model import Rule
    from tidings.settings import Settings

app = typer.Typer(help="Who wants which changes, and what a rule would do.", no_args_is_help=True)


@app.command("list")
def list_(
    project: Annotated[str | None, typer.Option(help="Only this project's: its name or public id.")] = None,
    bucket: Annotated[str | None, typer.Option(help="Only this bucket's.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the rules of every bucket, each with its destination and the state of its lane."""
    from tidings.rules.listing import listed

    with database() as connection:
        found = listed(connection, project, bucket)
    if as_json:
        out.print(json.dumps([asdict(rule) for rule in found]))
        return
    table = Table("project", "bucket", "id", "destination", "events", "prefix", "suffix", "lane", "state", box=None)
    for rule in found:
        filters = (rule.prefix, rule.suffix)
        names = (rule.project, rule.bucket, rule.id, rule.destination, ", ".join(rule.events))
        table.add_row(*names, *filters, str(rule.lane), rule.state)
    if found:
        out.print(table)
    err.print(f"{len(found)} rules")


Bucket = Annotated[str, typer.Option(help="The bucket that the rule is for.")]
Project = Annotated[str, typer.Option(help="Its project: the name or the public id.")]
Events = Annotated[list[str] | None, typer.Option("--event", help="s3:ObjectCreated:* and so on; again for more.")]
Prefix = Annotated[str, typer.Option(help="Only keys that begin with this.")]
Suffix = Annotated[str, typer.Option(help="Only keys that end with this.")]
Versions = Annotated[bool, typer.Option("--versions", help="A backfill also tells of older versions and delete markers.")]
Wait = Annotated[bool, typer.Option(help="Stay until a backfill is through. It goes on without us as well.")]


@app.command()
@audited("rules add", "bucket", "id_")
def add(
    bucket: Bucket,
    topic: Annotated[str, typer.Option(help="Where events go, as an ARN: arn:gcp:pubsub::PROJECT_ID:TOPIC_ID, for one.")],
    project: Project = "default",
    event: Events = None,
    prefix: Prefix = "",
    suffix: Suffix = "",
    id_: Annotated[str, typer.Option("--id", help="The rule's name; one is made of its content if not said.")] = "",
    backfill: Annotated[bool, typer.Option("--backfill", help="First tell it of the objects that are there.")] = False,
    versions: Versions = False,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Add one rule to a bucket's and leave the others as they are. A destination that is new there gets a test event."""
    from tidings import audit, bootstrap
    from tidings.events.arn import parse
    from tidings.rules.backfills import Backfill
    from tidings.rules.model import KeyFilter, Rule, derived_id, event_problems
    from tidings.rules.problems import refuse

    settings = settings_module.load()
    with mistakes():
        refuse(list(event_problems(event or [], settings.bucket_eventing.dialect)))
        place, filter_, events = parse(topic), KeyFilter(prefix, suffix), tuple(event or [])
        rule = Rule(id_ or derived_id(place, events, filter_), place, events, filter_)

    def added(rules: Sequence[Rule]) -> list[Rule]:
        if any(each.config_id == rule.config_id for each in rules):
            raise OperatorError(f"{bucket} has a rule {rule.config_id!r} already: remove that first, or choose another --id.")
        return [*rules, rule]

    wanted = Backfill(rule.config_id, versions) if backfill else None
    audit.about(f"{bucket}/{rule.config_id}")
    rules = bootstrap.change_rules(settings, project, bucket, added, wanted)
    values = {"bucket": bucket, "id": rule.config_id, "rules": len(rules)}
    words = f"rule {rule.config_id} added to {bucket}, which has {len(rules)} now"
    if wanted:
        done = backfilled(project, bucket, rule.config_id, wait)
        values, words = values | done, f"{words}; {done['words']}"
    say(as_json, values, words)


@app.command("backfill")
@audited("rules backfill", "bucket", "id_")
def backfill_(
    bucket: Annotated[str, typer.Argument(help="The bucket that the rule is for.")],
    id_: Annotated[str, typer.Argument(metavar="RULE", help="The rule's name: `tidings rules list` shows it.")],
    project: Project = "default",
    prefix: Prefix = "",
    versions: Versions = False,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Tell a rule that is at work already of the objects that are older than itself. Its own events wait until it is told."""
    from tidings import audit
    from tidings.delivery import backfills

    with database() as connection:
        audit.append_current(connection)  # with what is asked, which is committed at once
        backfills.ask(connection, project, bucket, id_, versions, prefix)
    done = backfilled(project, bucket, id_, wait)
    say(as_json, {"bucket": bucket, "id": id_, **done}, f"rule {id_} of {bucket}: {done['words']}")


def backfilled(project: str, bucket: str, id_: str, wait: bool) -> dict[str, Any]:
    """How far the newest backfill of a rule is; with `wait`, when it is through."""
    from tidings.cli.replay import until_ended
    from tidings.delivery import backfills

    with database() as connection:
        connection.autocommit = True

        def look() -> dict[str, Any]:
            return backfills.progress(connection, project, bucket, id_)

        done = look()
        if wait:
            with progress_bar("waiting for the stream", "telling of objects") as show:
                try:
                    done = until_ended(look, show, "backfill")
                except KeyboardInterrupt:
                    err.print("not waiting any longer; the backfill goes on: `tidings lanes list` shows it")
    dead = f", {done['dead_letters']} dead letters" if done["dead_letters"] else ""
    words = f"told of {done['sent']} objects{dead}" if done["ended"] else "the backfill goes on"
    return {key: done[key] for key in ("backfill", "sent", "dead_letters", "ended")} | {"words": words}


@app.command()
@audited("rules remove", "bucket", "id_")
def remove(
    bucket: Bucket,
    id_: Annotated[str, typer.Option("--id", help="The rule's name: `tidings rules list` shows it.")],
    project: Project = "default",
    as_json: AsJson = False,
) -> None:
    """Remove one rule of a bucket and leave the others as they are. What it was still owed is discarded."""
    from tidings import bootstrap

    def removed(rules: Sequence[Rule]) -> list[Rule]:
        left = [rule for rule in rules if rule.config_id != id_]
        if len(left) == len(rules):
            there = ", ".join(repr(rule.config_id) for rule in rules) or "none"
            raise OperatorError(f"{bucket} has no rule {id_!r}: there is {there}.")
        return left

    rules = bootstrap.change_rules(settings_module.load(), project, bucket, removed)
    say(
        as_json,
        {"bucket": bucket, "id": id_, "rules": len(rules)},
        f"rule {id_} removed from {bucket}, which has {len(rules)} now",
    )


@contextmanager
def mistakes() -> Iterator[None]:
    """What a tenant would get as an answer is one sentence here."""
    try:
        yield
    except CallerError as error:
        raise OperatorError(error.message) from None


@app.command()
def plan(
    bucket: Bucket,
    project: Project = "default",
    event: Events = None,
    prefix: Prefix = "",
    suffix: Suffix = "",
    days: Annotated[int, typer.Option(help="How far to look back.")] = 7,
    as_json: AsJson = False,
) -> None:
    """Try a rule on the last days' changes of a bucket, before anybody sets it. Reads with Spark; changes nothing."""
    from tidings import bootstrap
    from tidings.changestream import history
    from tidings.rules.draft import shared
    from tidings.rules.listing import find_bucket, listed

    settings = settings_module.load()
    draft = _draft(settings.bucket_eventing.dialect, event or [], prefix, suffix)
    _check_days(settings, days)
    with database() as connection:
        place = find_bucket(connection, project, bucket)
        start, end = history.last_days(connection, days)
        pieces = history.pieces(connection, place.id, start, end)
        others = listed(connection, project, bucket)
    began = time.monotonic()
    with progress_bar("starting Spark", "reading changes") as progress:
        found = bootstrap.plan_rule(settings, draft, pieces, progress)
    overlaps = [{**asdict(rule), "shared": both} for rule in others if (both := shared(draft, rule))]
    values = {"project": place.project, "bucket": place.name, **asdict(draft), "overlaps": overlaps}
    values |= {"from": start.isoformat(), "to": end.isoformat(), **_counted(found, start, end)}
    if as_json:
        out.print(json.dumps(values))
    else:
        _print(values)
    err.print(f"{found.matched} of {found.changes} changes would have matched; it took {time.monotonic() - began:.1f} s")


def _draft(profile: Profile, events: list[str], prefix: str, suffix: str) -> Draft:
    from tidings.rules.draft import Draft

    with mistakes():
        draft = Draft(tuple(events), prefix, suffix)
        draft.check(profile)
        return draft


def _check_days(settings: Settings, days: int) -> None:
    """Nothing is counted of days of which nothing is kept."""
    hours = settings.changestream.retention_hours
    most = max(1, math.ceil(hours / 24))
    if not 1 <= days <= most:
        kept = f"changes are kept for {hours:g} hours (TIDINGS_CHANGESTREAM__RETENTION_HOURS)"
        raise OperatorError(f"--days {days} is out of range: {kept}, so take 1 to {most}.")


def _counted(found: Found, start: datetime, end: datetime) -> dict[str, Any]:
    days = ((start + timedelta(days=number)).date() for number in range((end.date() - start.date()).days + 1))
    return {
        "changes": found.changes,
        "matched": found.matched,
        "by_event": list(_by("event", sorted({tally.event for tally in found.tallies}), found.tallies)),
        "by_day": list(_by("day", days, found.tallies)),
        "examples": [{**example._asdict(), "at": example.at.isoformat()} for example in found.examples],
    }


def _by(name: str, groups: Iterable[Any], tallies: Iterable[Tally]) -> Iterator[dict[str, Any]]:
    for group in groups:
        of_it = [tally for tally in tallies if getattr(tally, name) == group]
        yield {name: str(group), "changes": sum(t.changes for t in of_it), "matched": sum(t.matched for t in of_it)}


def _print(values: dict[str, Any]) -> None:
    overlaps = values["overlaps"]
    out.print(f"rules of {values['bucket']} that want some of the same changes: {len(overlaps) or 'none'}")
    for rule in overlaps:
        out.print(f"  {rule['id']} to {rule['destination']}: {', '.join(rule['shared'])}{_filter(rule)}")
    out.print(f"changes from {values['from']} to {values['to']}: {values['matched']} of {values['changes']} would have matched")
    for name in ("event", "day"):
        table = Table(name, "changes", "matched", box=None)
        for row in values[f"by_{name}"]:
            table.add_row(row[name], str(row["changes"]), str(row["matched"]))
        if values["changes"]:
            out.print(table)
    if values["examples"]:
        out.print("the newest keys that match:")
    for example in values["examples"]:
        out.print(f"  {example['at']} {example['event']} {example['key']}")


def _filter(rule: dict[str, Any]) -> str:
    return "".join(f", {name} {rule[name]!r}" for name in ("prefix", "suffix") if rule[name])
