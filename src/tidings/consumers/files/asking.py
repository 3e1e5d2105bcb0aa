"""The SHA-256 that a notification does not have, from the store. It blocks: call it from a thread."""

from __future__ import annotations

from tidings.consumers.files.notification import Record, sha256_of
from tidings.consumers.files.objects import Gone, Objects, Unreachable
from tidings.consumers.files.refusals import Failed


def asked(objects: Objects, record: Record) -> str | None:
    """As the object's metadata has it now; None if there is none, or nobody to ask. One that is malformed is refused, as in an
    event."""
    if not objects.known:
        return None
    try:
        return sha256_of(objects.metadata(record.bucket, record.key, record.version_id, str(record.etag)))
    except Gone:
        return None
    except Unreachable as error:
        raise Failed(f"The metadata of {record.bucket}/{record.key} cannot be read: {error}") from None
