"""Object keys: opaque text, and the form in which events and filters write them."""

from __future__ import annotations

from urllib.parse import quote_plus

MAX_BYTES = 1024


def form_encoded(key: str) -> str:
    """The key as the S3 event record writes it: a space is `+`, `/` stays, everything else is percent-encoded."""
    return quote_plus(key, safe="/")


def encoded_if_different(key: str) -> str | None:
    """What a change stores beside the key: its encoded form, or nothing where the two are the same.

    It is computed once, when the change is written, so that no second implementation (Java's differs in `*` and `~`)
    ever has to agree with this one.
    """
    encoded = form_encoded(key)
    return None if encoded == key else encoded
