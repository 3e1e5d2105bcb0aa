from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field


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
    alert_command: tuple[str, ...] = Field(
        (), description="a command that is run, with JSON on its stdin, when a lane's tries are spent: to call somebody"
    )
    catch_up_rate: float = Field(
        0, ge=0, description="messages a second that a lane which is behind may send at most; 0 for no limit"
    )
    isolation: Literal["lane", "stream"] = Field(
        "lane",
        description="who waits for a failing record: its lane (lane), or everybody (stream), as seed 000 has it to the letter",
    )
    dead_letter_days: float = Field(14, gt=0, description="how long dead letters are kept")
    archive: str = Field(
        "",
        description="a folder, or what Spark takes for one, for changes that a lane still needs when their retention is over;"
        " without one they stay in the database",
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="where the stream shows its figures; 0 for nowhere")
    publish_timeout_seconds: float = Field(10.0, gt=0, description="the longest wait for one answer of a destination")


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
