"""Whose messages are taken, and of which buckets: named by the operator, everything else is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from tidings.consumers.files.refusals import Unauthorised
from tidings.consumers.files.settings import FilesSettings
from tidings.errors import OperatorError

VARIABLE = "AWS_RESOURCE_CONFIG"
"""The seed's own name for it: {"sns_topics": […], "s3_buckets": […]}. Where it is set, it stands in place of the settings."""


class _Config(BaseModel, extra="forbid", strict=True):
    sns_topics: list[str] = []
    s3_buckets: list[str] = []


@dataclass(frozen=True, slots=True)
class Allowed:
    topics: frozenset[str]
    buckets: frozenset[str]

    def check_buckets(self, buckets: frozenset[str]) -> None:
        """Strict: one that is not named refuses the whole request."""
        if not buckets <= self.buckets:
            raise Unauthorised(f"Unauthorized S3 bucket: {', '.join(sorted(buckets - self.buckets))[:500]}")


def allowed(settings: FilesSettings, environment: Mapping[str, str] = os.environ) -> Allowed:
    given = environment.get(VARIABLE)
    if given is None:
        return Allowed(frozenset(settings.sns_topics), frozenset(settings.s3_buckets))
    try:
        config = _Config.model_validate(json.loads(given))
    except (ValueError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise OperatorError(f'{VARIABLE} is not {{"sns_topics": [...], "s3_buckets": [...]}}: {reason}.') from None
    return Allowed(frozenset(config.sns_topics), frozenset(config.s3_buckets))
