from __future__ import annotations

import uuid
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator

from tidings import plugins
from tidings.events.profiles import PROFILES, Name, Profile


class BucketEventingSettings(BaseModel, frozen=True, extra="forbid"):
    """Notification configuration: who may have one, and what it may ask for."""

    projects: str = Field(
        "",
        description="projects with eventing: their public ids, separated by commas, or * for all; of others no change is kept",
    )
    profile: Name = Field("aws", description="aws: what AWS's tools expect; storj: seed 000 to the letter")
    destinations: tuple[str, ...] = Field(
        ("pubsub", "kafka", "sns", "queue"),
        description="kinds of destination that tenants may send to; pubsub alone, if not said, in the profile storj",
    )
    service_account: str | None = Field(
        None,
        pattern=r"^[^@\s/]+@[^@\s/]+$",
        description="the account that tenants allow to publish to their Pub/Sub topics; impersonated with our credentials",
    )
    lookup: Literal["database", "redis"] = Field(
        "database",
        description="where a write looks for rules: in its own transaction (database), or in a shared cache (redis)",
    )
    redis_url: SecretStr = Field(
        SecretStr(""),
        description="redis://user:password@host:port/0 for lookup = redis; `tidings up` starts one where it is empty",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_buckets(cls, values: Any) -> Any:
        if isinstance(values, dict) and "buckets" in values:
            raise ValueError(
                "bucket-eventing.buckets is no longer there. Name the projects in bucket-eventing.projects; their users"
                " then set a notification configuration for each bucket through the S3 API"
            )
        return values

    @model_validator(mode="before")
    @classmethod
    def _of_the_seed(cls, values: Any) -> Any:
        """Seed 000 knows Pub/Sub only."""
        if isinstance(values, dict) and values.get("profile") == "storj" and "destinations" not in values:
            return {**values, "destinations": ("pubsub",)}
        return values

    @field_validator("projects", mode="before")
    @classmethod
    def _listed(cls, projects: Any) -> Any:
        """A list is as good as text."""
        return ",".join(map(str, projects)) if isinstance(projects, list | tuple) else projects

    @field_validator("projects")
    @classmethod
    def _are_projects(cls, projects: str) -> str:
        named = [each.strip() for each in projects.split(",") if each.strip()]
        for each in named:
            if each != "*" and not _is_uuid(each):
                raise ValueError(f"{each[:100]!r} is neither a project's public id nor *; `tidings project list` shows them")
        return ",".join(each.lower() for each in named)

    @field_validator("destinations")
    @classmethod
    def _are_destinations(cls, destinations: tuple[str, ...]) -> tuple[str, ...]:
        there = plugins.names("destinations")
        for each in destinations:
            if each not in there:
                raise ValueError(f"{each[:100]!r} is not a kind of destination: there is {', '.join(sorted(there))}")
        return destinations

    def enabled(self, project: str) -> bool:
        """Whether the project, named by its public id, has eventing at all."""
        return project in self._enabled or "*" in self._enabled

    @cached_property
    def _enabled(self) -> frozenset[str]:
        return frozenset(self.projects.split(","))

    @property
    def dialect(self) -> Profile:
        return PROFILES[self.profile]


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
