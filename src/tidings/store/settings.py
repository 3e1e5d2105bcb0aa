from __future__ import annotations

from pydantic import BaseModel, Field


class StoreSettings(BaseModel, frozen=True, extra="forbid"):
    """The object store."""

    upload_days: int = Field(7, ge=1, description="days after which a multipart upload that was not completed is ended")
    sweep_hours: float = Field(6, ge=0, description="hours between sweeps for blobs that nothing refers to; 0 turns them off")
    blobs: str = Field("", description="where bodies over 4 KiB go: file:///folder, s3://bucket/prefix, gs://, az://")
