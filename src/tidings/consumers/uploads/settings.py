from __future__ import annotations

from pydantic import BaseModel, Field, SecretStr

_URL = r"^(https?://[^\s/]+)?$"
_GIB = 1024**3


class UploadsSettings(BaseModel, frozen=True, extra="forbid"):
    """The upload registry: its HTTP front, the bucket and the queue behind it, and the consumer."""

    host: str = Field("127.0.0.1", description="the address that `tidings uploads serve` listens on")
    port: int = Field(9100, ge=1, le=65535, description="its port")
    max_bytes: int = Field(_GIB, ge=1, le=5 * _GIB, description="the largest file; one put of S3 takes 5 GiB at most")
    spooled_bytes_per_project: int = Field(
        4 * _GIB,
        ge=1,
        description="bytes of a project's files that a process has on disk on their way to the store, or `max_bytes` if that"
        " is more; an upload beyond that is answered with SlowDown",
    )

    endpoint: str = Field(
        "", pattern=_URL, description="https://HOST[:PORT] of the S3 that has the bucket; this installation's own if empty"
    )
    sqs_endpoint: str = Field("", pattern=_URL, description="of the SQS that has the queue, if it is not at the same place")
    region: str = Field("", description="the region that calls are signed for; that of the API if empty")
    access_key_id: str = Field("", description="the key for the bucket and the queue")
    secret: SecretStr = Field(SecretStr(""), description="its secret")
    sqs_access_key_id: str = Field("", description="the key for the queue, if it is another")
    sqs_secret: SecretStr = Field(SecretStr(""), description="the secret of that")

    bucket: str = Field("uploads", min_length=3, max_length=63, description="the bucket that uploads are put into")
    queue: str = Field(
        "r2-upload-notifications",
        pattern=r"^[A-Za-z0-9_-]{1,76}$",
        description="the queue of its notifications; dead letters go to one of the same name with -dlq",
    )

    batch_seconds: int = Field(
        5, ge=0, le=20, description="how long a batch of ten messages is waited for; 0 takes what is there"
    )
    visibility_seconds: int = Field(
        60, ge=1, le=43_200, description="how long a message is its receiver's: one that failed is tried again after that"
    )
    receivers: int = Field(2, ge=1, le=1000, description="Spark tasks that receive side by side; each needs a task slot")
    round_seconds: float = Field(10.0, gt=0, description="how long they receive before they report to the driver")

    @property
    def dead_letters(self) -> str:
        return f"{self.queue}-dlq"
