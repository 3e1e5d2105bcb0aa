from __future__ import annotations

from pydantic import BaseModel, Field


class ApiSettings(BaseModel, frozen=True, extra="forbid"):
    """The HTTP front."""

    host: str = Field("127.0.0.1", description="the address that the S3 API listens on")
    port: int = Field(9000, ge=0, le=65535, description="its port; 0 takes any free one")
    region: str = Field("us-east-1", description="the region that requests are signed for")
    workers: int = Field(1, ge=1, le=64, description="processes that serve requests")
