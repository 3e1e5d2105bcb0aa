from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field, model_validator


class TopicsSettings(BaseModel, frozen=True, extra="forbid"):
    """Topics with subscriptions, as SNS has them."""

    max_topics: int = Field(1000, ge=1, description="topics of one project at most")
    max_subscriptions: int = Field(100, ge=1, description="subscriptions of one topic at most")
    signing_key: Path | None = Field(
        None, description="a PEM file with the RSA key that signs messages; without one, a key is made and kept in the database"
    )
    signing_key_days: int = Field(
        365, ge=1, le=3650, description="days after which a key in the database is replaced by a new one; certificates stay"
    )
    signing_certificate: Path | None = Field(None, description="a PEM file with the certificate of that key")

    @model_validator(mode="after")
    def _both_or_none(self) -> TopicsSettings:
        if (self.signing_key is None) != (self.signing_certificate is None):
            raise ValueError("signing_key and signing_certificate belong together: set both, or none")
        return self
