"""May a project send to a destination, and does the destination take anything: asked before a rule is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidings import destinations, plugins
from tidings.db.pool import Pool
from tidings.errors import CallerError
from tidings.rules.model import invalid
from tidings.settings import Settings


def unavailable(arns: Iterable[str], settings: Settings) -> Iterator[CallerError]:
    """Destinations of a kind that the operator does not offer."""
    enabled = settings.bucket_eventing.destinations
    for arn in arns:
        if (kind := destinations.kind_of(arn)) not in enabled:
            sentence = (
                f"{arn} cannot be served: the operator has not enabled {kind}. There is {', '.join(enabled) or 'nothing'}."
            )
            yield invalid("Topic", arn, sentence)


async def refused(pool: Pool, project: str, arns: Iterable[str], settings: Settings) -> list[CallerError]:
    """Destinations that are not for this project, by their own word."""
    found = []
    for arn in arns:
        asked = getattr(plugins.load("destinations", destinations.kind_of(arn)), "refusal", None)
        if asked is not None:
            async with pool.connection() as connection:
                reason = await asked(connection, project, arn, settings)
            if reason:
                found.append(CallerError("AccessDenied", f"{arn}: {reason}.", ArgumentName="Topic", ArgumentValue=arn))
    return found
