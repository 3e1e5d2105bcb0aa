from __future__ import annotations

from pydantic import BaseModel, Field, SecretStr


class DatabaseSettings(BaseModel, frozen=True, extra="forbid"):
    """PostgreSQL 18 or newer."""

    url: SecretStr = Field(SecretStr(""), description="postgresql://user:password@host:port/database")
    pool_size: int = Field(16, ge=2, le=500, description="connections that one API process keeps at most")
