"""What PutBucketNotificationConfiguration and GetBucketNotificationConfiguration do, whichever front they come through.

A configuration is taken only if its destinations have answered a test event (seed 000, "Test Event Format"). While a
destination is waited for, no connection is held: a slow topic of one tenant must not empty the pool of all.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from psycopg_pool import AsyncConnectionPool

from tidings import destinations, metrics
from tidings.errors import CallerError
from tidings.events.messages import Message, Outcome, Verdict
from tidings.rules import table
from tidings.rules.model import Rule
from tidings.settings import Settings

TEST_SECONDS = 10.0
"""The seed's limit for the answer to a test event. An operator may set less, not more."""

_MAX_REASON = 500


async def put(
    pool: AsyncConnectionPool[Any],
    settings: Settings,
    project_public_id: str,
    bucket: str,
    rules: Sequence[Rule],
    *,
    request_id: str | None = None,
    host_id: str | None = None,
) -> None:
    """Replace the bucket's rules. Without rules it deletes what there was and sends nothing.

    `request_id` and `host_id` are those of the answer to the caller, so that a test event can be traced to its PUT.
    """
    await get(pool, project_public_id, bucket)  # nobody gets a test event for a bucket that is not there
    request_id = request_id or secrets.token_hex(8).upper()
    await _test({rule.topic.arn for rule in rules}, settings, bucket, request_id, host_id or request_id)
    async with pool.connection() as connection:
        await table.replace(connection, project_public_id, bucket, rules)


async def get(pool: AsyncConnectionPool[Any], project_public_id: str, bucket: str) -> list[Rule]:
    """The bucket's rules; an empty list where there are none."""
    async with pool.connection() as connection:
        return await table.read(connection, project_public_id, bucket)


async def _test(arns: set[str], settings: Settings, bucket: str, request_id: str, host_id: str) -> None:
    """Send the test event to every destination at once; raise with the words of each that did not take it."""
    message = Message(id=f"{request_id}.test", body=_test_event(bucket, request_id, host_id))
    ordered = sorted(arns)
    outcomes = await asyncio.gather(*(_send(arn, settings, message) for arn in ordered))
    refused = {
        arn: outcome.reason for arn, outcome in zip(ordered, outcomes, strict=True) if outcome.verdict is not Verdict.SENT
    }
    if refused:
        words = "; ".join(f"{arn} ({reason[:_MAX_REASON]})" for arn, reason in refused.items())
        raise CallerError(
            "InvalidArgument",
            f"Unable to validate the following destination configurations: {words}. The configuration was not changed.",
            ArgumentName="Topic",
            ArgumentValue=", ".join(refused),
        )


async def _send(arn: str, settings: Settings, message: Message) -> Outcome:
    """One message through a client of its own: what is cached elsewhere would not notice a permission taken away."""
    destination = destinations.connect(arn, settings)
    try:
        timeout = min(TEST_SECONDS, settings.delivery.publish_timeout_seconds)
        (outcome,) = await destination.send([message], timeout)
        metrics.tested("sent" if outcome.verdict is Verdict.SENT else "refused")
        return outcome
    finally:
        await destination.close()


def _test_event(bucket: str, request_id: str, host_id: str) -> bytes:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    event = {
        "Service": "Amazon S3",
        "Event": "s3:TestEvent",
        "Time": now,
        "Bucket": bucket,
        "RequestId": request_id,
        "HostId": host_id,
    }
    return json.dumps(event).encode()
