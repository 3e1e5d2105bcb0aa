"""The one place where settings become real things: connections, a session, a stream.

Most commands need a connection alone. What needs Spark is imported where it is used: with pandas and Arrow that takes a second.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import psycopg
from psycopg import Connection

from tidings.access import api_keys
from tidings.access.keys import Principal
from tidings.access.permissions import ACTIONS, Grant
from tidings.access.projects import existing_project
from tidings.db.connecting import connect_once
from tidings.db.pool import Pool, make_pool
from tidings.errors import CallerError, OperatorError
from tidings.rules import catalog_subscriptions, reaching
from tidings.rules.backfills import Backfill
from tidings.rules.catalog_subscriptions import Subscription
from tidings.rules.draft import Draft
from tidings.rules.lookup import Lookup, cache_for
from tidings.rules.model import Rule
from tidings.rules.notification import Notifications
from tidings.rules.overlaps import problems_together
from tidings.rules.problems import refuse
from tidings.secrets import keyring, rotation
from tidings.secrets.master_key import MasterKey
from tidings.secrets.rotation import Rotated
from tidings.settings import Settings
from tidings.store import buckets
from tidings.store.blobs import Blobs
from tidings.store.emptying import empty
from tidings.store.sweep import Swept, claim
from tidings.store.sweep import sweep as sweep_store
from tidings.telemetry import SEND_SECONDS
from tidings.topics import signing
from tidings.topics.signing import SIGNING_KEY
from tidings.topics.subscribing import WEBHOOK_SECRETS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidings.consumers.files.loading import Loaded
    from tidings.consumers.uploads.consuming import Tally
    from tidings.delivery import plan
    from tidings.delivery.ownership import Owner
    from tidings.delivery.progress import Progress
    from tidings.delivery.reports import Report
    from tidings.delivery.stream import Stream

log = logging.getLogger(__name__)

T = TypeVar("T")

ChangeRules = Callable[[Sequence[Rule]], list[Rule]]
_CHANGE_TRIES = 5

_SMALL_MEMORY = "512m"


SEALED = (api_keys.SECRET, api_keys.TAIL, api_keys.ROOT, WEBHOOK_SECRETS, SIGNING_KEY)
"""Every column that holds secrets."""


def connect(settings: Settings) -> Connection:
    """One connection for a command."""
    return connect_once(settings.database_url)


def check_tables(connection: Connection) -> None:
    """One clear sentence where the migrations have not been run."""
    try:
        connection.execute("select from changes limit 0")
    except psycopg.errors.UndefinedTable:
        raise OperatorError("The database has no tables of Tidings yet: run `tidings migrate` first.") from None


def run_stream(settings: Settings, rebase: bool, made: Callable[[Stream], None], started: Callable[[Owner], None]) -> None:
    """Start Spark, warm it up, and run the stream until `stop` is called on what `made` was given."""
    from tidings.delivery import session
    from tidings.delivery.figures import Figures
    from tidings.delivery.figures import serve as serve_figures
    from tidings.delivery.pipeline import Pipeline
    from tidings.delivery.stream import Stream

    session.check_java()
    with connect(settings) as connection:  # who has made a mistake is told before Spark has started
        check_tables(connection)
    keyring.check_at_start(settings.database_url, settings.secrets)
    for place in reaching.left_open(settings):
        log.warning("%s", place)
    spark = session.start(settings)
    try:
        Pipeline(spark, settings).warm_up()
        figures = Figures()
        if settings.delivery.metrics_port:
            serve_figures(figures, settings.delivery.metrics_host, settings.delivery.metrics_port, lambda: connect(settings))
        stream = Stream(spark, settings, rebase, figures)
        made(stream)
        stream.run(started)
    finally:
        _stop(spark, settings)


def _stop(spark: SparkSession, settings: Settings) -> None:
    """Spark ends its workers without a word: what they have left to tell needs a moment."""
    if settings.telemetry.on:
        time.sleep(2 * SEND_SECONDS)
    spark.stop()


def consume_uploads(settings: Settings, once: bool, stop: threading.Event) -> Tally:
    """Start Spark with a slot for each receiver, and keep the upload registry until `stop`, or once."""
    from tidings.consumers.uploads import job
    from tidings.delivery import session

    with connect(settings) as connection:
        check_tables(connection)
    spark = session.start(settings, on_top=settings.uploads.receivers - 1)
    try:
        return job.run(spark, settings, once, stop)
    finally:
        _stop(spark, settings)


def plan_rule(settings: Settings, draft: Draft, pieces: Sequence[str], progress: Progress | None) -> plan.Found:
    """Try a rule on the history."""
    from tidings.delivery import plan

    literal = settings.bucket_eventing.dialect.literal_filters
    return with_small_spark(settings, lambda spark: plan.run(spark, draft, pieces, progress, literal))


def with_small_spark(settings: Settings, work: Callable[[SparkSession], T]) -> T:
    """Run one job with a Spark of its own, small enough to have room beside a stream."""
    from tidings.delivery import session

    small = settings.spark.model_copy(update={"driver_memory": _SMALL_MEMORY})
    with session.hushed():
        spark = session.aside(lambda: session.start(settings.model_copy(update={"spark": small}), on_top=0))
    try:
        return session.aside(lambda: work(spark))
    finally:
        _stop(spark, settings)


def redrive_archive(settings: Settings, range_: int, progress: Progress | None) -> int:
    """Send an archived range again, with a Spark of its own; returns how many messages were taken."""
    from tidings.delivery import archive

    with connect(settings) as connection:
        found = archive.sendable(connection, range_)
        report = with_small_spark(settings, lambda spark: _told(spark, progress, connection, settings, range_))
        connection.commit()
    if report.cursor is not None:
        raise OperatorError(
            f"{report.sent} messages were sent, then: {report.error or 'no answer'}. Try again: ids stay the same."
        )
    if left := archive.unwanted(found, report):
        raise OperatorError(
            f"{report.sent} messages were sent, {len(report.dead)} are dead letters; {left} of {found['n']} changes are wanted "
            f"by no rule as it is now. The range is kept: `tidings dead-letters discard --range {range_}` gives it up."
        )
    return report.sent


def _told(spark: SparkSession, progress: Progress | None, connection: Connection, settings: Settings, range_: int) -> Report:
    from tidings.delivery import archive
    from tidings.delivery.progress import told

    with told(spark, "send an archived range", progress) if progress else nullcontext():
        return archive.send(connection, spark, settings, range_)


def consume_inventory(settings: Settings, once: bool, accept_loss: bool, stop: threading.Event) -> Counter[str]:
    """Start Spark and keep the inventory until `stop`, or once; returns what was counted."""
    from tidings.consumers.inventory.job import Inventory
    from tidings.delivery import session

    with connect(settings) as connection:
        check_tables(connection)
    spark = session.start(settings, on_top=0)
    try:
        job = Inventory(spark, settings, once, accept_loss)

        def end() -> None:
            stop.wait()
            with suppress(Exception):  # Spark may have ended by itself
                spark.sparkContext.setLogLevel("OFF")  # a batch that is broken off is no news
            job.stop()

        threading.Thread(target=end, daemon=True).start()
        job.run()
        return job.counts
    finally:
        _stop(spark, settings)


def export_inventory(settings: Settings, folder: str) -> int:
    """Write a copy as Parquet with a Spark of its own; returns how many versions there are."""
    from tidings.consumers.inventory import export

    with connect(settings) as connection:
        check_tables(connection)
    return with_small_spark(settings, lambda spark: export.export(spark, settings, folder))


def load_files(settings: Settings, path: str, progress: Callable[[str], None]) -> Loaded:
    """Start Spark for one load into the file registry."""
    from tidings.consumers.files.loading import load

    with connect(settings) as connection:
        check_tables(connection)
    return with_small_spark(settings, lambda spark: load(spark.read.text(path), settings, progress))


def empty_bucket(settings: Settings, project: str, bucket: str, progress: Callable[[int], None]) -> int:
    """Remove every version of every object; returns how many keys there were."""
    owner = _public_id(settings, project)

    async def work(pool: Pool, blobs: Blobs) -> int:
        eventing = await Lookup(settings.bucket_eventing, pool).begin(owner, bucket)
        return await empty(pool, blobs, owner, bucket, eventing, progress)

    return _with_store(settings, work)


def delete_bucket(settings: Settings, project: str, bucket: str, force: bool, progress: Callable[[int], None]) -> int:
    """Delete a bucket; with force, also one that is not empty. Returns how many keys were removed."""
    owner = _public_id(settings, project)
    removed = empty_bucket(settings, owner, bucket, progress) if force else 0
    _with_store(settings, lambda pool, _: buckets.delete(pool, owner, bucket))
    return removed


def change_rules(
    settings: Settings, project: str, bucket: str, change: ChangeRules, backfill: Backfill | None = None
) -> list[Rule]:
    """Replace a bucket's rules by what `change` makes of them, with the checks of a tenant's PUT.

    Only destinations that are new there get a test event: who adds a rule need not answer for all the others. Rules that
    somebody changed in between are not overwritten, but read and changed again. `backfill` is for a rule that is new.
    """
    operator = Principal("operator", _public_id(settings, project), Grant(frozenset(ACTIONS)))
    request_id = secrets.token_hex(8).upper()

    async def work(pool: Pool, _: Blobs) -> list[Rule]:
        cache = cache_for(settings.bucket_eventing)
        service = Notifications(settings, pool, Lookup(settings.bucket_eventing, pool, cache))
        try:
            for left in reversed(range(_CHANGE_TRIES)):
                found = await service.get(operator, bucket)
                rules = change(found.rules)

                async def read(rules: list[Rule] = rules) -> list[Rule]:
                    refuse(list(problems_together(rules, settings.bucket_eventing.dialect)))
                    return rules

                try:
                    expected = [found.etag]
                    ids = {"request_id": request_id, "host_id": "operator"}
                    await service.put(operator, bucket, read, expected=expected, trusted=found.rules, backfill=backfill, **ids)
                    return rules
                except CallerError as error:
                    if error.code != "PreconditionFailed" or not left:
                        raise
            raise AssertionError("the last try returned or raised")
        finally:
            if cache is not None:
                await cache.close()

    return _with_store(settings, work)


def subscribe_to_catalog(settings: Settings, project: str, wanted: Subscription) -> None:
    """With the checks of a tenant's call: a destination that is not open to the project or takes no test event is refused."""
    public_id, request_id = _public_id(settings, project), secrets.token_hex(8).upper()

    async def work() -> None:
        async with make_pool(settings.database_url, 1) as pool:
            await catalog_subscriptions.put(pool, settings, public_id, wanted, request_id)

    asyncio.run(work())


def sweep(settings: Settings, min_age_minutes: float, adopt: bool, progress: Callable[[int], None]) -> Swept:
    upload_age, age = timedelta(days=settings.store.upload_days), timedelta(minutes=min_age_minutes)

    async def work(pool: Pool, blobs: Blobs) -> Swept:
        await claim(pool, blobs, adopt)
        return await sweep_store(pool, blobs, upload_age, age, lambda done: progress(done.seen))

    return _with_store(settings, work)


def rotate_secrets(settings: Settings, new_master: MasterKey | None, progress: Callable[[int], None]) -> Rotated:
    """Encrypt every secret again, under a new data key."""
    with connect(settings) as connection:
        connection.autocommit = True
        check_tables(connection)
        return rotation.rotate(connection, keyring.under(settings.secrets), SEALED, new_master, progress)


def replace_signing_key(settings: Settings) -> str:
    """Returns the URL of the new certificate."""

    async def work() -> str:
        async with await psycopg.AsyncConnection.connect(settings.database_url) as connection:
            return await signing.replace(connection, settings)

    connect(settings).close()  # one sentence if it does not answer
    return asyncio.run(work())


def _public_id(settings: Settings, project: str) -> str:
    with connect(settings) as connection:
        check_tables(connection)
        return existing_project(connection, project)


def _with_store(settings: Settings, work: Callable[[Pool, Blobs], Awaitable[T]]) -> T:
    async def opened() -> T:
        async with make_pool(settings.database_url, 4) as pool:
            return await work(pool, Blobs(settings.store.blobs))

    # obstore's threads let go of what they have returned a moment later; where Python has ended by then, they abort.
    atexit.register(time.sleep, 0.1)
    try:
        return asyncio.run(opened())
    except CallerError as error:
        raise OperatorError(error.message) from None
