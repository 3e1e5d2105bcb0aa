from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from tidings.errors import OperatorError

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class InventorySettings(BaseModel, frozen=True, extra="forbid"):
    """The live inventory, which `tidings consume inventory` keeps."""

    cluster: str = Field("local", description="which of `kafka.clusters` its topics are in")
    topics: tuple[str, ...] = Field(
        (), description="the topics it reads, in format cos; all events of a bucket must go to these"
    )
    source: Literal["tidings-kafka", "kafka"] = Field(
        "tidings-kafka", description="how Spark reads them: our own source, or Spark's connector where its package is installed"
    )
    spark_options: dict[str, str] = Field(
        {}, description="for Spark's connector only: its further options, such as kafka.security.protocol; they show in plans"
    )
    max_rows: int = Field(100_000, ge=1, description="notifications in one batch at most")
    poll_seconds: float = Field(0.5, gt=0, description="how often it looks for new ones")

    @field_validator("topics")
    @classmethod
    def _are_topics(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        for topic in topics:
            if not _TOPIC.fullmatch(topic):
                raise ValueError(f"{topic[:100]!r} is not the name of a Kafka topic")
        return topics

    def chosen(self, **given: Any) -> InventorySettings:
        """These settings, with what a command was given in place of some."""
        values = {name: value for name, value in given.items() if value}
        try:
            return InventorySettings.model_validate({**self.model_dump(), **values})
        except ValidationError as error:
            raise OperatorError("; ".join(problem["msg"] for problem in error.errors()) + ".") from None
