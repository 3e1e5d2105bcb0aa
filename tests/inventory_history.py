"""Random histories of a small store, and the notifications that it sends of them."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import psycopg

import plain_formats
from store_model import Model, Version, md5_hex
from tidings.events.profiles import AWS
from tidings.formats import Context

CONTEXT = Context("eu-west-1", AWS, "48def817-f0a3-1949-abe2-9193be91de22", "My Store")
AT = datetime(2026, 1, 17, 10, 30, tzinfo=UTC)
STEPS = ("put", "put", "post", "copy", "multipart", "delete", "delete", "delete version", "move", "versioning")

Event = tuple[bytes, str]
"""A body and its sequencer."""


class History:
    """`draw` decides what happens."""

    def __init__(self, draw: random.Random, buckets: int = 2, keys: int = 3) -> None:
        self._draw = draw
        self._numbers = count(1)
        self.model = Model({"principal": "me", "source_ip": "127.0.0.1"})
        self._keys = [f"folder/key {number} ß" for number in range(keys)]
        for number in range(buckets):
            self.model.ids[f"bucket-{number}"] = f"id-{number}"
            self.model.states[f"bucket-{number}"] = "unversioned"

    def step(self) -> None:
        bucket, key = self._draw.choice(list(self.model.states)), self._draw.choice(self._keys)
        kind = self._draw.choice(STEPS)
        if kind == "versioning":
            self.model.states[bucket] = self._draw.choice(["enabled", "suspended"])
        elif kind == "delete":
            self.model.delete(bucket, key, self._new_id(bucket))
        elif kind == "delete version":
            there = self.model.of(bucket, key)
            if there:
                self.model.delete_version(bucket, key, self._draw.choice(there).id)
        elif kind == "move":
            target = self._draw.choice(list(self.model.states)), self._draw.choice(self._keys)
            if target != (bucket, key) and self.model.current(bucket, key) is not None:
                self.model.move((bucket, key), target, self._new_id(target[0]))
        else:
            body = b"x" * self._draw.randrange(1000)
            version = Version("", False, body, md5_hex(body), self._draw.choice(["", "text/plain", 'odd "type"']), {"a": "b"})
            event = {"put": "Put", "post": "Post", "copy": "Copy", "multipart": "CompleteMultipartUpload"}[kind]
            self.model.put(bucket, key, version, self._new_id(bucket), kind, f"ObjectCreated:{event}")

    def _new_id(self, bucket: str) -> str | None:
        state = self.model.states[bucket]
        return None if state == "unversioned" else "null" if state == "suspended" else f"version-{next(self._numbers)}"

    def events(self) -> list[Event]:
        """In the order in which they happened."""
        return [_event(number, change) for number, change in enumerate(self.model.changes, 250)]  # past FF is 0100

    def listed(self) -> list[tuple[Any, ...]]:
        """What ListObjectVersions shows of all buckets, with the content types."""
        shown = []
        for bucket in sorted(self.model.states):
            latest: set[str] = set()
            for key, version in self.model.all(bucket):
                about = ("", "") if version.marker else (version.etag, version.content_type)
                first = key not in latest
                latest.add(key)
                shown.append(
                    (bucket, self.model.ids[bucket], key, version.id, first, version.marker, len(version.body), *about)
                )
        return shown


def listed(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """What the inventory shows, as `History.listed` has it."""
    return connection.execute(
        "select bucket, bucket_id, key, version_id, is_latest, delete_marker, size, coalesce(etag, ''),"
        " coalesce(content_type, '') from inventory_versions order by bucket, bucket_id, key, sequencer desc"
    ).fetchall()


def _event(number: int, change: dict[str, Any]) -> Event:
    whole = {
        **change,
        "seq": number,
        "id": f"change-{number}",
        "at": AT + timedelta(minutes=number),
        "request_at": None,
        "request_id": f"request-{number}",
        "metadata": json.dumps(change["metadata"] or {}),
    }
    return json.dumps(plain_formats.cos(whole, CONTEXT, "")).encode(), f"{number:016X}"
