"""What a key may do: what it was made for, as far as every caveat allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidings.access.macaroons import Caveat

READ, WRITE, LIST, DELETE = "read", "write", "list", "delete"
PUT_NOTIFICATION = "PutBucketNotificationConfiguration"
GET_NOTIFICATION = "GetBucketNotificationConfiguration"
MANAGE_QUEUES, SEND_MESSAGE, RECEIVE_MESSAGE = "ManageQueues", "SendMessage", "ReceiveMessage"
MANAGE_TOPICS, SUBSCRIBE = "ManageTopics", "Subscribe"
READ_CATALOG, WRITE_CATALOG = "ReadCatalog", "WriteCatalog"
FIRST_ACTIONS = (READ, WRITE, LIST, DELETE, PUT_NOTIFICATION, GET_NOTIFICATION)
"""What a key may do that is older than API keys."""
ACTIONS = (*FIRST_ACTIONS, MANAGE_QUEUES, SEND_MESSAGE, RECEIVE_MESSAGE, MANAGE_TOPICS, SUBSCRIBE, READ_CATALOG, WRITE_CATALOG)


@dataclass(frozen=True, slots=True)
class Grant:
    """The actions that a key was made for, and its caveats.

    The actions are kept with the key's secret, not in the key: a caveat that names an action cannot give it, and a key that
    was made before there was an action does not get it.
    """

    actions: frozenset[str]
    caveats: Sequence[Caveat] = ()

    def allows(self, action: str, bucket: str | None, prefix: str | None, now: float) -> bool:
        """Whether `action` is allowed on a bucket, or on what begins with `prefix` in it: a key's name, or that of a listing.

        Without a prefix it is about the bucket itself, which who is limited to a part of it may not touch. Without a
        bucket it is about no bucket in particular.
        """
        return action in self.actions and all(_allows(caveat, action, bucket, prefix, now) for caveat in self.caveats)

    def allows_beside_buckets(self, action: str, now: float) -> bool:
        """Whether `action` is allowed on something that is in no bucket. A key that is for some buckets is for them alone."""
        return self.allows(action, None, None, now) and all(
            caveat.buckets is None and caveat.prefixes is None for caveat in self.caveats
        )

    def sees(self, bucket: str, now: float) -> bool:
        """Whether a list of buckets shows this one."""
        return all(
            _in_time(caveat, now)
            and (caveat.buckets is None or bucket in caveat.buckets)
            and (caveat.prefixes is None or any(bucket == name for name, _ in caveat.prefixes))
            for caveat in self.caveats
        )


def _in_time(caveat: Caveat, now: float) -> bool:
    return (caveat.not_before is None or now >= caveat.not_before) and (caveat.not_after is None or now < caveat.not_after)


def _allows(caveat: Caveat, action: str, bucket: str | None, prefix: str | None, now: float) -> bool:
    if not _in_time(caveat, now) or (caveat.actions is not None and action not in caveat.actions):
        return False
    if bucket is None:
        return True
    if caveat.buckets is not None and bucket not in caveat.buckets:
        return False
    if caveat.prefixes is None:
        return True
    allowed = [start for name, start in caveat.prefixes if name == bucket]
    if prefix is None:
        return "" in allowed
    return any(prefix.startswith(start) for start in allowed)
