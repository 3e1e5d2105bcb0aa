"""What PutBucketNotificationConfiguration and GetBucketNotificationConfiguration do, whichever front they come through.

The caller is known by then. The steps are those of seed 000, in its order: a project without eventing learns nothing
else, and a key that may not configure learns nothing about the configuration it sent.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tidings import audit
from tidings.access.keys import Principal
from tidings.access.permissions import GET_NOTIFICATION, PUT_NOTIFICATION
from tidings.db.pool import Pool
from tidings.errors import CallerError, Precondition
from tidings.rules import reaching, table, test_event
from tidings.rules.backfills import Backfill
from tidings.rules.lookup import Lookup
from tidings.rules.model import Rule
from tidings.rules.problems import refuse
from tidings.rules.table import Configuration
from tidings.settings import Settings

_ENCRYPTED = "Bucket eventing requires satellite-managed encryption (path encryption must be disabled)"

Read = Callable[[], Awaitable[Sequence[Rule]]]
"""Reads and validates what the caller sent: each front has its own form of it."""


@dataclass(frozen=True, slots=True)
class Notifications:
    """The service under both fronts."""

    settings: Settings
    pool: Pool
    lookup: Lookup

    async def put(
        self,
        caller: Principal,
        bucket: str,
        read: Read,
        *,
        expected: Sequence[str] | None = None,
        trusted: Sequence[Rule] = (),
        request_id: str,
        host_id: str,
        backfill: Backfill | None = None,
    ) -> str:
        """Replace the bucket's rules; without rules, delete what there was. Returns the new entity tag.

        `expected` are the entity tags that the caller is ready to change from. The destinations of `trusted` rules, which
        are there already and which the caller did not touch, get no test event. `request_id` and `host_id` are those of
        the answer, so that a test event can be traced to its PUT. `backfill` is for the operator's commands: a document of S3
        has no place for it. While a destination is waited for, no connection is
        held: a slow topic of one tenant must not empty the pool of all.
        """
        self._check_enabled(caller)
        await self._check_paths(caller)
        _check_allowed(caller, PUT_NOTIFICATION, bucket)
        before = await self._read(caller, bucket)  # nobody gets a test event for a bucket that is not there
        rules = await read()
        named = list({rule.destination.arn: None for rule in rules})
        refuse(list(reaching.unavailable(named, self.settings)))
        async with self.pool.connection() as connection:
            refuse(await reaching.refused(connection, caller.project, named, self.settings))
        if expected is not None and before.etag not in expected:
            raise table.changed_meanwhile()
        arns = {*named} - {rule.destination.arn for rule in trusted}
        body = test_event.of_bucket(self.settings.bucket_eventing.dialect, bucket, request_id, host_id)
        await test_event.send(arns, self.settings, caller.project, body, request_id)
        async with audit.transaction(self.pool) as connection:
            refuse(await reaching.refused(connection, caller.project, named, self.settings))  # somebody may have been quicker
            etag = await table.replace(connection, caller.project, bucket, rules, expected, before.bucket_id, backfill)
        await self.lookup.forget(caller.project, bucket)
        return etag

    async def get(self, caller: Principal, bucket: str) -> Configuration:
        """The bucket's rules, none where there are none. Always from the database, never from a cache."""
        self._check_enabled(caller)
        _check_allowed(caller, GET_NOTIFICATION, bucket)
        return await self._read(caller, bucket)

    def _check_enabled(self, caller: Principal) -> None:
        if not self.settings.bucket_eventing.enabled(caller.project):
            message = "Bucket eventing is not enabled for this project: ask the operator of this service for it."
            raise CallerError("NotImplemented", message)

    async def _check_paths(self, caller: Principal) -> None:
        async with self.pool.connection() as connection:
            found = await connection.execute(
                "select from projects where public_id = %s and not path_encryption", [caller.project]
            )
        if not found.rowcount:
            raise Precondition("InvalidRequest", _ENCRYPTED)

    async def _read(self, caller: Principal, bucket: str) -> Configuration:
        async with self.pool.connection() as connection:
            return await table.read(connection, caller.project, bucket)


def _check_allowed(caller: Principal, action: str, bucket: str) -> None:
    if not caller.grant.allows(action, bucket, None, time.time()):
        raise CallerError("AccessDenied", f"Access Denied: the key does not allow {action} on this bucket.")
