"""Standard Webhooks: three headers by which a receiver of raw messages knows who sent them, and when (standardwebhooks.com)."""

from __future__ import annotations

import base64
import hmac
import time
from collections.abc import Sequence

from tidings.topics.model import secret_bytes


def headers(id_: str, body: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """With two secrets there are two signatures: a receiver knows one of them, the old or the new."""
    if not secrets:
        return {}
    timestamp = str(int(time.time()))
    signed = f"{id_}.{timestamp}.".encode() + body
    signatures = [base64.b64encode(hmac.digest(secret_bytes(secret), signed, "sha256")).decode() for secret in secrets]
    return {
        "webhook-id": id_,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
