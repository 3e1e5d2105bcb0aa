"""The consumer: receive → head → upsert, committed → delete, for up to ten messages at once.

A crash between any two of these leaves the messages in the queue, and what is done again does no harm: a name is recorded once.
What fails is not acknowledged and comes back when its visibility ends; after four receives the queue itself moves it to its
dead letters.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Any, NamedTuple

import psycopg

from tidings.consumers.uploads import places, registry
from tidings.consumers.uploads.labels import Upload, labelled
from tidings.consumers.uploads.notification import Created, NotANotification, read
from tidings.db.connecting import noticing
from tidings.settings import Settings

log = logging.getLogger(__name__)

BATCH = 10
"""Messages at most: seed 004's max_batch_size, and as many as one receive of SQS gives."""
_QUEUE_SECONDS = 10.0
_PAUSE_SECONDS = 1.0
_WORDS = 300


class Outcome(StrEnum):
    """What became of a message. All but the last are acknowledged."""

    RECORDED = "recorded"
    GONE = "gone"
    """The object was deleted meanwhile."""
    UNLABELLED = "unlabelled"
    """It was not put through the front: its metadata names no upload."""
    IGNORED = "ignored"
    """The test event, or nothing was created."""
    FAILED = "failed"


Tally = Counter[Outcome]


class Message(NamedTuple):
    body: str
    handle: str


Headed = Upload | Outcome
"""What an object is called, or why its message ends otherwise."""


class Consumer:
    """One receiver. Its steps are methods of their own; `batch` is their order."""

    def __init__(self, settings: Settings) -> None:
        self._url = noticing(settings.database_url)
        self._settings = settings.uploads
        self._s3 = places.s3(settings, places.LOCKED_SECONDS)
        self._sqs = places.sqs(settings, _QUEUE_SECONDS + self._settings.batch_seconds)
        self._threads = ThreadPoolExecutor(BATCH, thread_name_prefix="head")
        self._queue_url = ""
        self._connection: psycopg.Connection[Any] | None = None

    def work(self, seconds: float, once: bool = False) -> Tally:
        """Receive for so long; with `once`, no longer than there is something to receive, and raise what goes wrong."""
        tally, deadline = Tally(), time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                done = self.batch(0 if once else min(left, self._settings.batch_seconds))
            except Exception as error:  # boto3 raises what its libraries raise
                self._disconnect()
                if once:
                    raise
                log.warning("uploads: %s: %s", type(error).__name__, str(error)[:_WORDS])
                time.sleep(min(_PAUSE_SECONDS, max(0.0, deadline - time.monotonic())))
                continue
            if once and not done:
                break
            tally += done
        return tally

    def batch(self, seconds: float) -> Tally:
        """Take a batch through all steps."""
        messages = self.receive(seconds)
        if not messages:
            return Tally()
        found = [self._read(message) for message in messages]
        keys = {each.key for each in found if isinstance(each, Created)}
        headed = self.record(keys) if keys else {}
        outcomes = [_outcome(headed[each.key]) if isinstance(each, Created) else each for each in found]
        settled = [message for message, outcome in zip(messages, outcomes, strict=True) if outcome is not Outcome.FAILED]
        if settled:
            self.acknowledge(settled)
        return Tally(outcomes)

    def receive(self, seconds: float) -> list[Message]:
        """Up to ten messages, or those that come in this time."""
        if not self._queue_url:
            self._queue_url = self._sqs.get_queue_url(QueueName=self._settings.queue)["QueueUrl"]
        deadline = time.monotonic() + seconds
        messages: list[Message] = []
        while True:
            left = max(0.0, deadline - time.monotonic())
            answer = self._sqs.receive_message(
                QueueUrl=self._queue_url,
                MaxNumberOfMessages=BATCH - len(messages),
                # Whole seconds only. One at least: with none, SQS asks some of its hosts, and may say that nothing is there.
                WaitTimeSeconds=max(1, round(left)),
                VisibilityTimeout=self._settings.visibility_seconds,
            )
            got = answer.get("Messages") or []
            messages += [Message(each["Body"], each["ReceiptHandle"]) for each in got]
            if len(messages) >= BATCH or time.monotonic() >= deadline:
                return messages

    def record(self, keys: Collection[str]) -> dict[str, Headed]:
        """Ask the store for every object, and write down those that are there; when this returns, they are committed.

        The locks come first: see registry.py.
        """
        with self._connected().transaction():
            registry.hold(self._connected(), self._settings.bucket, keys)
            headed = dict(zip(keys, self._threads.map(self.head, keys), strict=True))
            self.upsert([each for each in headed.values() if isinstance(each, Upload)])
        return headed

    def forget(self, keys: Collection[str]) -> int:
        """Strike out those of these whose objects are not there; returns how many."""
        with self._connected().transaction():
            registry.hold(self._connected(), self._settings.bucket, keys)
            headed = dict(zip(keys, self._threads.map(self.head, keys), strict=True))
            return registry.strike(self._connected(), [key for key, found in headed.items() if found is Outcome.GONE])

    def head(self, key: str) -> Headed:
        """What the store says about an object now, whatever it was when the notification was written."""
        try:
            found = self._s3.head_object(Bucket=self._settings.bucket, Key=key)
        except Exception as error:  # boto3 raises what its libraries raise
            if places.status_of(error) == 404 and self._bucket_is_there():
                return Outcome.GONE
            log.warning("uploads: head of %r: %s: %s", key, type(error).__name__, str(error)[:_WORDS])
            return Outcome.FAILED
        upload = labelled(found.get("Metadata", {}))
        if upload is None:
            log.error("uploads: %r has no organizationId and name in its metadata: it was not put through the front", key)
            return Outcome.UNLABELLED
        return upload

    def _bucket_is_there(self) -> bool:
        """A head has no body to say what is missing. Without the bucket, or at the wrong store, everything would be gone."""
        try:
            self._s3.head_bucket(Bucket=self._settings.bucket)
        except Exception:
            return False
        return True

    def upsert(self, uploads: Sequence[Upload]) -> None:
        registry.merge(self._connected(), uploads)

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Delete them from the queue, each by itself: one that fails comes back, and does no harm."""
        entries = [{"Id": str(place), "ReceiptHandle": message.handle} for place, message in enumerate(messages)]
        answer = self._sqs.delete_message_batch(QueueUrl=self._queue_url, Entries=entries)
        for each in answer.get("Failed") or []:
            log.warning("uploads: a message was not acknowledged: %s: %s", each.get("Code"), each.get("Message"))

    def _read(self, message: Message) -> Created | Outcome:
        try:
            found = read(message.body)
        except NotANotification as error:
            log.error("uploads: %s", error)
            return Outcome.FAILED
        if found is None:
            return Outcome.IGNORED
        if found.bucket != self._settings.bucket:
            log.error("uploads: a notification of the bucket %r, but uploads are in %r", found.bucket, self._settings.bucket)
            return Outcome.FAILED
        return found

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._url, autocommit=True, application_name="tidings-uploads")
        return self._connection

    def _disconnect(self) -> None:
        """After a failure the connection is not trusted, and the queue may be another."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._queue_url = None, ""

    def close(self) -> None:
        self._disconnect()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _outcome(headed: Headed) -> Outcome:
    return headed if isinstance(headed, Outcome) else Outcome.RECORDED
