"""The bucket and the queue, wherever they are: clients of boto3 for any S3 and any SQS."""

from __future__ import annotations

from typing import Any

from tidings.consumers.uploads.settings import UploadsSettings
from tidings.errors import OperatorError
from tidings.settings import Settings

CONNECT_SECONDS = 5.0
LOCKED_SECONDS = 10.0
"""For an answer of the store that is waited for with a lock in hand."""


def s3(settings: Settings, seconds: float, tries: int = 1) -> Any:
    """A client of the store. `seconds` is the longest wait for an answer, `tries` how often a call is made."""
    uploads = settings.uploads
    return _client("s3", settings, uploads.endpoint, _key(uploads), seconds, tries)


def sqs(settings: Settings, seconds: float, tries: int = 1) -> Any:
    """A client of the queue's service."""
    uploads = settings.uploads
    own = (uploads.sqs_access_key_id, uploads.sqs_secret.get_secret_value())
    return _client("sqs", settings, uploads.sqs_endpoint or uploads.endpoint, own if own[0] else _key(uploads), seconds, tries)


def _key(uploads: UploadsSettings) -> tuple[str, str]:
    return uploads.access_key_id, uploads.secret.get_secret_value()


def _client(service: str, settings: Settings, endpoint: str, key: tuple[str, str], seconds: float, tries: int) -> Any:
    if not all(key):
        raise OperatorError(
            "The upload registry has no key: set TIDINGS_UPLOADS__ACCESS_KEY_ID and TIDINGS_UPLOADS__SECRET "
            "(`tidings access create --project NAME` makes one)."
        )
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"total_max_attempts": tries, "mode": "standard"},
        connect_timeout=CONNECT_SECONDS,
        read_timeout=seconds,
        max_pool_connections=50,
        s3={"addressing_style": "path"},  # a bucket's own host name is not to be had everywhere
        # Not every S3 takes checksums in trailers. The signature covers the body.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.session.Session().client(
        service,
        endpoint_url=endpoint or settings.api.url,
        region_name=settings.uploads.region or settings.api.region,
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
        config=config,
    )


def code_of(error: Exception) -> str:
    """What a service called the error; empty if it did not answer at all."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def status_of(error: Exception) -> int:
    response = getattr(error, "response", None)
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) if isinstance(response, dict) else 0
