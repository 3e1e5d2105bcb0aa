"""May a project send to a destination, and does the destination take anything: asked before a rule is stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from psycopg import AsyncConnection

from tidings import destinations, plugins
from tidings.errors import CallerError
from tidings.rules.model import invalid
from tidings.settings import Settings

_LOCK = "select pg_advisory_xact_lock(hashtextextended(name, 0)) from unnest(%s::text[]) name"
"""In the order of the names, which is the same for everybody."""

# Who shares a topic already goes on: nothing that worked stops.
_HELD = """
select from lanes where destination = any(%(names)s) and project <> %(project)s and state <> 'closed'
and not exists (select from lanes where destination = any(%(names)s) and project = %(project)s and state <> 'closed')
"""

_SETTINGS = {"pubsub": "pubsub.projects", "kafka": "kafka.clusters.CLUSTER.topics"}
"""Where an operator says whose a topic is."""


def unavailable(arns: Iterable[str], settings: Settings) -> Iterator[CallerError]:
    """Destinations of a kind that the operator does not offer."""
    enabled = settings.bucket_eventing.destinations
    for arn in arns:
        if (kind := destinations.kind_of(arn)) not in enabled:
            sentence = (
                f"{arn} cannot be served: the operator has not enabled {kind}. There is {', '.join(enabled) or 'nothing'}."
            )
            yield invalid("Topic", arn, sentence)


async def refused(
    connection: AsyncConnection[Any], project: str, arns: Collection[str], settings: Settings
) -> list[CallerError]:
    """Destinations that are not for this project: by their own word, or because another project came first.

    In the transaction that stores the rule, nobody else can come first any more.
    """
    reasons = {arn: await _refusal(connection, project, arn, settings) for arn in arns}
    open_ = {arn: _shared(project, arn, settings) for arn, reason in reasons.items() if reason is None}
    if names := sorted({name for each in open_.values() for name in each}):
        await connection.execute(_LOCK, [names])
        for arn, names in open_.items():
            if (await connection.execute(_HELD, {"names": names, "project": project})).rowcount:
                reasons[arn] = (
                    "another project has rules for this topic, and no setting says whose it is: ask the operator to bind it to"
                    f" {project} in {_SETTINGS[destinations.kind_of(arn)]}"
                )
    return [
        CallerError("AccessDenied", f"{arn}: {reason}.", ArgumentName="Topic", ArgumentValue=arn)
        for arn, reason in reasons.items()
        if reason
    ]


async def _refusal(connection: AsyncConnection[Any], project: str, arn: str, settings: Settings) -> str | None:
    asked = getattr(plugins.load("destinations", destinations.kind_of(arn)), "refusal", None)
    return None if asked is None else await asked(connection, project, arn, settings)


def _shared(project: str, arn: str, settings: Settings) -> list[str]:
    asked = getattr(plugins.load("destinations", destinations.kind_of(arn)), "shared", None)
    return [] if asked is None else asked(project, arn, settings)


def left_open(settings: Settings) -> Iterator[str]:
    """What an operator should bind: places that several projects may send to, with nothing that says whose a topic is."""
    enabled = settings.bucket_eventing.destinations
    ending = "a topic is for the project that first has a rule for it (docs/operating.md, Whose topic is it?)"
    if "pubsub" in enabled and settings.pubsub.first_come:
        yield f"pubsub.projects is not set: any project may send to any Google project, and {ending}"
    for name, cluster in settings.kafka.clusters.items() if "kafka" in enabled else ():
        if not cluster.topics and ("*" in cluster.projects or len(cluster.projects) > 1):
            yield f"kafka.clusters.{name}.topics is not set, and several projects may send there: {ending}"
    for number, account in settings.external.accounts.items() if {"sns", "queue"} & {*enabled} else ():
        if account.is_shared:
            yield (
                f"external.accounts.{number}.projects has several projects, and each may send to every queue and topic of it:"
                " only the attribute tidings-project tells their messages apart"
            )
