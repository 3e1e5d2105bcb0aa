from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, Field, SecretStr, field_validator

_URL = re.compile(r"https?://[a-z0-9.:\[\]-]+")


class FilesSettings(BaseModel, frozen=True, extra="forbid"):
    """The file registry: `tidings consume files`. Nothing is taken in before topics and buckets are named."""

    host: str = Field("127.0.0.1", description="the address that the webhook listens on")
    port: int = Field(9020, ge=1, le=65535, description="its port")
    workers: int = Field(1, ge=1, le=64, description="processes that serve it")
    sns_topics: tuple[str, ...] = Field((), description="ARNs of the topics whose messages are taken")
    s3_buckets: tuple[str, ...] = Field((), description="buckets whose files are registered")
    trusted: tuple[str, ...] = Field(
        (), description="https://HOST[:PORT] of installations of Tidings whose signatures count, beside AWS's own"
    )
    missing_sha256: Literal["refuse", "await"] = Field(
        "refuse", description="a file without the metadata source-sha256 is refused, or registered without until validation"
    )
    s3_endpoint: str = Field(
        "",
        pattern=r"^(https?://[^\s/]+)?$",
        description="https://HOST of the store, which is asked for what events do not say; nobody is asked if empty",
    )
    s3_region: str = Field("us-east-1", description="the region to sign for")
    s3_access_key_id: str = Field("", description="the key to read the store with")
    s3_secret: SecretStr = Field(SecretStr(""), description="its secret")
    h5ad_memory_bytes: int = Field(
        256 << 20, ge=32 << 20, description="memory that looking for a DOI may take in one .h5ad file, beyond the process's own"
    )
    h5ad_processor_seconds: int = Field(2, ge=1, le=3600, description="processor time that it may take")
    h5ad_wall_seconds: float = Field(10.0, gt=0, le=3600, description="time that it may take, also waiting for a disk")
    h5ad_chunk_bytes: int = Field(
        64 << 10,
        ge=4096,
        description="the largest chunk of an entry that is read; an entry with larger ones is refused beforehand",
    )

    @field_validator("trusted")
    @classmethod
    def _are_urls(cls, trusted: tuple[str, ...]) -> tuple[str, ...]:
        for url in trusted:
            if not _URL.fullmatch(url):
                raise ValueError(f"{url[:100]!r} is not https://HOST[:PORT] in lower case, without a path")
        return trusted
