"""The store that files are in: what it says about an object, and the object itself. boto3 blocks: call it from a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tidings.consumers.files.settings import FilesSettings

_CONNECT_SECONDS, _READ_SECONDS = 3.0, 10.0
_CHUNK = 1 << 20
_THREADS = 32
_GONE = frozenset({"404", "NoSuchKey", "NoSuchVersion", "412", "PreconditionFailed", "405", "MethodNotAllowed"})
"""405: the version is a delete marker now."""


class Unreachable(Exception):
    """The store did not answer as it should: somebody may try again."""


class Gone(Exception):
    """The object is not there, or not as the notification had it."""


@dataclass(frozen=True, slots=True)
class Body:
    metadata: Mapping[str, str]
    chunks: Iterator[bytes]


class Objects:
    def __init__(self, settings: FilesSettings) -> None:
        self._settings = settings

    @property
    def known(self) -> bool:
        """Whether there is a store to ask."""
        return bool(self._settings.s3_endpoint)

    def metadata(self, bucket: str, key: str, version_id: str | None, etag: str) -> Mapping[str, str]:
        """The user's metadata of just this object: one with another ETag is another one, whose event is still to come."""
        found: Mapping[str, str] = _asked(self._client.head_object, bucket, key, version_id, etag)["Metadata"]
        return found

    def body(self, bucket: str, key: str, version_id: str | None, etag: str) -> Body:
        answer = _asked(self._client.get_object, bucket, key, version_id, etag)
        return Body(answer["Metadata"], _chunks(answer["Body"]))

    @cached_property
    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(
            retries={"total_max_attempts": 2, "mode": "standard"},
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            max_pool_connections=_THREADS,
            s3={"addressing_style": "path"},
        )
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self._settings.s3_endpoint,
            region_name=self._settings.s3_region,
            aws_access_key_id=self._settings.s3_access_key_id,
            aws_secret_access_key=self._settings.s3_secret.get_secret_value(),
            config=config,
        )


def _asked(operation: Callable[..., Any], bucket: str, key: str, version_id: str | None, etag: str) -> Any:
    named = {"Bucket": bucket, "Key": key, "IfMatch": f'"{etag}"'}
    if version_id is not None:
        with _said():
            return operation(**named, VersionId=version_id)
    try:
        with _said():
            return operation(**named)
    except Gone:
        # A newer version may lie over the null version. Where there never were versions, not every store knows its id.
        with _said("400", "InvalidArgument"):
            return operation(**named, VersionId="null")


def _chunks(body: Any) -> Iterator[bytes]:
    with _said():
        yield from body.iter_chunks(_CHUNK)


@contextmanager
def _said(*gone: str) -> Iterator[None]:
    """boto3's errors in two kinds; `gone` are more codes that say so."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        raise (Gone if code in _GONE or code in gone else Unreachable)(f"the store says {code}: {str(error)[:300]}") from None
    except (BotoCoreError, OSError) as error:
        raise Unreachable(f"the store does not answer: {type(error).__name__}: {error}"[:300]) from None
