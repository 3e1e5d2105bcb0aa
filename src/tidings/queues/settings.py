from __future__ import annotations

from pydantic import BaseModel, Field


class QueuesSettings(BaseModel, frozen=True, extra="forbid"):
    """SQS-compatible queues."""

    max_per_project: int = Field(1000, ge=0, description="queues that one project may have; 0 allows none")
    sweep_seconds: float = Field(60.0, gt=0, description="seconds between sweeps for messages that nobody can receive any more")
