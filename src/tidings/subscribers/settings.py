from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class SubscribersSettings(BaseModel, frozen=True, extra="forbid"):
    """Subscribers in the server's processes, which hear of the catalog's changes."""

    queue_size: int = Field(10_000, ge=1, description="events that wait for one subscriber at most, in each process of the API")
    overflow: Literal["oldest", "newest"] = Field("oldest", description="which events are dropped when a queue is full")
    timeout_seconds: float = Field(5.0, gt=0, description="how long a listener may take for one event")
    retries: int = Field(2, ge=0, description="how often an event is tried again for which a listener has raised")
    backoff_seconds: float = Field(0.1, gt=0, description="the wait before the first retry; each further one is twice as long")
    backoff_max_seconds: float = Field(5.0, gt=0, description="the longest wait before a retry")
    breaker_failures: int = Field(5, ge=1, description="so many failed attempts in a row, and a listener is left alone")
    breaker_rest_seconds: float = Field(30.0, gt=0, description="how long it is left alone, before one event tries it again")
    hung_calls: int = Field(
        2,
        ge=1,
        description="calls that may hang at a time, each with a thread; a listener with so many waits until one returns",
    )
    drain_seconds: float = Field(2.0, ge=0, description="how long a server that stops lets subscribers take what is queued")
    log: bool = Field(False, description="whether each event is written to the log (the logger tidings.catalog.events)")
    kafka_cluster: str = Field(
        "", description="the name of a cluster in kafka.clusters that events are sent to; empty for none"
    )
    kafka_topic: str = Field("catalog-events", min_length=1, max_length=249, description="the topic there")
