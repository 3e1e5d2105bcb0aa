from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, field_validator

from tidings import plugins


class DeliverySettings(BaseModel, frozen=True, extra="forbid"):
    """The pipeline."""

    max_rows: int = Field(5_000, ge=1, description="changes in one round at most")
    budget_seconds: float = Field(
        1.0,
        gt=0,
        description="how long a round waits for destinations; a lane that needs longer goes on beside the stream",
    )
    poll_seconds: float = Field(0.02, gt=0, description="how often an idle stream looks for new changes")
    retry_seconds: tuple[float, ...] = Field(
        (1, 2, 4, 8), min_length=1, description="waits between tries of a failing lane; the last one repeats"
    )
    publish_timeout_seconds: float = Field(10.0, gt=0, description="the longest wait for one answer of a destination")


class FormatSettings(BaseModel, frozen=True, extra="forbid"):
    """What messages say, where the change alone does not tell."""

    system_uuid: str = Field(
        "00000000-0000-0000-0000-000000000000",
        pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        description="the `system_uuid` of the format cos: which store it was, for those who hear from several",
    )
    system_name: str = Field("", description="the `system_name` of the format cos; empty for none")
    pubsub_formats: dict[str, str] = Field(
        {}, description="the format of messages to Pub/Sub for each project (public id, or `*` for the others); s3 if not said"
    )

    @field_validator("pubsub_formats")
    @classmethod
    def _check_formats(cls, formats: dict[str, str]) -> dict[str, str]:
        known = plugins.names("formats")
        for project, name in formats.items():
            if name not in known:
                raise ValueError(f"there is no format {name!r} (for {project}); there are: {', '.join(known)}")
        return formats

    def pubsub_format(self, project: str) -> str:
        """The format of a project's messages to Pub/Sub."""
        return self.pubsub_formats.get(project) or self.pubsub_formats.get("*", "s3")


class PubSubSettings(BaseModel, frozen=True, extra="forbid"):
    """Google Pub/Sub. An emulator needs nothing but its host."""

    emulator_host: str | None = Field(None, description="host:port of a server without TLS and credentials")
    endpoint: str = Field(
        "pubsub.googleapis.com", pattern=r"^[^\s/]+$", description="the host of Pub/Sub, or host:port; always with TLS"
    )
    credentials_file: Path | None = Field(
        None, description="a Google credentials file; without one, Google's application default credentials"
    )
    iam_endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]+$",
        description="where to ask for impersonation, if not at https://iamcredentials.googleapis.com: a private endpoint",
    )


class SparkSettings(BaseModel, frozen=True, extra="forbid"):
    """Apache Spark."""

    master: str = Field("local[*]", description="local[*], spark://host:port, yarn or k8s://...")
    driver_memory: str = Field("1g", description="memory of the driver's JVM; with local[*] it does all the work")
    conf: dict[str, str] = Field({}, description="further Spark settings, by their full names")
