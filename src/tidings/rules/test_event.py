"""The test event: a configuration is taken only if its destinations answer one (seed 000, "Test Event Format")."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Set
from datetime import UTC, datetime

from tidings import destinations, metrics
from tidings.errors import Precondition
from tidings.events.messages import PROJECT, Message, Outcome, Verdict
from tidings.events.profiles import STORJ, Profile
from tidings.settings import Settings

TEST_SECONDS = 10.0
"""The seed's limit for the answer to a test event. An operator may set less, not more."""

_MAX_REASON = 500


async def send(arns: Set[str], settings: Settings, project: str, body: bytes, request_id: str) -> None:
    """Send it to all these destinations at once; raise with the words of each that did not take it."""
    ordered = sorted(arns)
    message = Message(id=f"{request_id}.test", body=body, attributes={PROJECT: project})
    outcomes = await asyncio.gather(*(_send(arn, settings, message) for arn in ordered))
    refused = {
        arn: outcome.reason for arn, outcome in zip(ordered, outcomes, strict=True) if outcome.verdict is not Verdict.SENT
    }
    if refused:
        words = "; ".join(f"{arn} ({reason[:_MAX_REASON]})" for arn, reason in refused.items())
        raise Precondition(
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


def of_bucket(profile: Profile, bucket: str, request_id: str, host_id: str) -> bytes:
    """What it says for a bucket."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    event = {"Service": profile.service, "Event": "s3:TestEvent", "Time": now, "Bucket": bucket}
    traced = {} if profile is STORJ else {"RequestId": request_id, "HostId": host_id}
    return json.dumps(event | traced).encode()
