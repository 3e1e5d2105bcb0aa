from __future__ import annotations

from pydantic import BaseModel, Field


class ChangestreamSettings(BaseModel, frozen=True, extra="forbid"):
    """The log of changes."""

    retention_hours: float = Field(168, gt=0, description="how long changes are kept; never dropped ahead of a cursor")
    partition_hours: int = Field(6, ge=1, le=168, description="how much time one partition holds")
    warn_transaction_seconds: float = Field(
        30,
        gt=0,
        description="warn when a transaction has been open for this long: its own changes cannot be delivered before it ends",
    )
    warn_retention_hours: float = Field(24, ge=0, description="warn when retention will reach a lane's cursor within this time")
