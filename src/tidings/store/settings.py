from __future__ import annotations

from pydantic import BaseModel, Field


class StoreSettings(BaseModel, frozen=True, extra="forbid"):
    """The object store."""

    blobs: str = Field("", description="where bodies over 4 KiB go: file:///folder, s3://bucket/prefix, gs://, az://")
