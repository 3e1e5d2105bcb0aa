"""What a registry knows against what a bucket holds: missing, extra, different; and repairing it through its own merge.

A registry takes part with one function, `registry(settings) -> Registry`, in its module `tidings.consumers.NAME`, or anywhere
else: `--with package.module:function`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tidings import settings as settings_module
from tidings.changestream.reader import fetch
from tidings.consumers.bucket_listing import Listing, listed
from tidings.delivery.progress import Progress, told
from tidings.errors import OperatorError
from tidings.events import names
from tidings.settings import Settings

KNOWN = StructType(
    [
        StructField("key", StringType()),
        StructField("version_id", StringType()),
        StructField("etag", StringType()),
        StructField("size", LongType()),
    ]
)
"""What a registry says of an object, or of a version. What is null it does not know, and that is not compared."""

KINDS = ("missing", "extra", "different")
MOST_EXAMPLES = 20
_AT_ONCE = 10_000
_ARROW = to_arrow_schema(KNOWN)


class Event(NamedTuple):
    """What nobody has heard of, told again. It is no change of the store: `id` says so, and it has no request behind it.

    `sequencer` is lower than that of every change that the listing may not have seen, and higher than all before; None for a
    bucket elsewhere, whose sequencers only its own store can make.
    """

    id: str
    event: str
    bucket: str
    key: str
    version_id: str
    etag: str | None
    size: int | None
    at: datetime | None
    sequencer: str | None


class Registry(ABC):
    """What a registry MUST offer. Its tables are its own; nothing else is known of them."""

    versions: bool = False
    """Whether it keeps every version, or one row for each key."""
    markers: bool = False
    """Whether it keeps delete markers too."""

    @abstractmethod
    def known(self, spark: SparkSession, bucket: str) -> DataFrame:
        """What it knows of a bucket, without what it knows to be deleted: the columns of KNOWN. See `from_query`."""

    @abstractmethod
    def repair(self, events: Sequence[Event]) -> int:
        """Put these through its own merge, as if they had come as events; returns how many changed anything.

        It may be called again with the same ones, and beside the consumer.
        """


def load(name: str, settings: Settings) -> Registry:
    """A registry of ours by its name, or anybody's: `package.module:function`."""
    module, colon, function = name.partition(":")
    try:
        make = getattr(import_module(module if colon else f"tidings.consumers.{name}"), function or "registry")
    except (ImportError, AttributeError) as error:
        raise OperatorError(f"{name!r} is no registry that could be reconciled: {error}.") from None
    registry = make(settings)
    if not isinstance(registry, Registry):
        raise OperatorError(f"{name!r} gives {type(registry).__name__}, which is no Registry (tidings.consumers.reconcile).")
    return registry


def from_query(spark: SparkSession, query: str) -> DataFrame:
    """What a query of the database finds, with the columns of KNOWN, read in parts."""
    parts = spark.sparkContext.defaultParallelism
    return spark.range(0, parts, 1, parts).mapInArrow(partial(_read, query=query, parts=parts), KNOWN)


def _read(batches: Iterator[pa.RecordBatch], query: str, parts: int) -> Iterator[pa.RecordBatch]:
    url = settings_module.load().database_url
    for batch in batches:
        for part in batch.column(0).to_pylist():
            mine = f"(hashtextextended(key, 0) & {0x7FFFFFFF}) % {parts} = {part}"
            columns = "key::text, version_id::text, etag::text, size::bigint"
            for found in fetch(url, f"select {columns} from ({query}) as known where {mine}"):
                yield pa.RecordBatch.from_arrays([found.column(f.name).cast(f.type) for f in _ARROW], schema=_ARROW)


def compared(held: DataFrame, known: DataFrame, versions: bool) -> DataFrame:
    """Every object, or version, of either side, with what is wrong about it: null if nothing is. Both anti-joins in one."""
    of_registry = known.select(
        "key",
        F.coalesce("version_id", F.lit("null")).alias("version_id"),
        F.btrim("etag", F.lit('"')).alias("known_etag"),
        F.col("size").alias("known_size"),
        F.lit(True).alias("is_known"),
    )
    of_bucket = held.withColumn("is_held", F.lit(True))
    if not versions:
        of_registry = of_registry.withColumnRenamed("version_id", "known_version")
    joined = of_bucket.join(of_registry, on=["key", "version_id"] if versions else ["key"], how="full")
    missing, extra = F.col("is_known").isNull(), F.col("is_held").isNull()
    kind = F.when(missing, "missing").when(extra, "extra").when(_differ("etag") | _differ("size"), "different")
    version = "version_id" if versions else F.coalesce("version_id", "known_version").alias("version_id")
    return joined.select(
        kind.alias("kind"),
        "key",
        version,
        "etag",
        "size",
        "known_etag",
        "known_size",
        "modified_at",
        "delete_marker",
        "is_known",
    )


def _differ(name: str) -> Column:
    return F.coalesce(F.col(name) != F.col(f"known_{name}"), F.lit(False))


@dataclass(frozen=True, slots=True)
class Found:
    listed: int
    known: int
    missing: int
    extra: int
    different: int
    repaired: int
    examples: list[dict[str, Any]] = field(default_factory=list)


def reconcile(
    spark: SparkSession, listing: Listing, registry: Registry, repair: bool, progress: Progress | None = None
) -> Found:
    held = listed(spark, listing, registry.versions, registry.markers)
    both = compared(held, registry.known(spark, listing.bucket), registry.versions).persist()
    try:
        with told(spark, "compare a bucket with a registry", progress) if progress else nullcontext():
            counted = both.groupBy("kind").agg(F.count("*").alias("count"), F.count("is_known").alias("known")).collect()
        by_kind = {row["kind"]: row["count"] for row in counted}
        wrong = both.where(F.col("kind").isNotNull())
        examples = wrong.orderBy("key", "version_id").limit(MOST_EXAMPLES).collect()
        repaired = 0
        if repair:
            rows_left = wrong.toLocalIterator()
            while rows := list(islice(rows_left, _AT_ONCE)):
                repaired += registry.repair([event(row, listing.bucket, listing.sequencer) for row in rows])
    finally:
        both.unpersist()
    return Found(
        listed=sum(by_kind.values()) - by_kind.get("extra", 0),
        known=sum(row["known"] for row in counted),
        missing=by_kind.get("missing", 0),
        extra=by_kind.get("extra", 0),
        different=by_kind.get("different", 0),
        repaired=repaired,
        examples=[row.asDict() for row in examples],
    )


def event(row: Row, bucket: str, sequencer: str | None) -> Event:
    """What the registry should have heard: the object as it is, or that it is gone. The same finding has the same id."""
    gone = row.kind == "extra"
    name = names.DELETE if gone else names.MARKER if row.delete_marker else names.PUT
    what = "/".join([name, bucket, row.version_id or "null", str(row.etag), str(row.modified_at), row.key])
    return Event(
        f"reconcile-{uuid5(NAMESPACE_URL, what)}",
        name,
        bucket,
        row.key,
        row.version_id or "null",
        None if gone else row.etag,
        None if gone else row.size,
        row.modified_at,
        sequencer,
    )
