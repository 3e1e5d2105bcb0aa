"""What a registry knows against what a bucket holds: missing, extra, different; and repairing it through its own merge.

A registry takes part with one function, `registry(settings) -> Registry`: ours in `tidings.consumers.NAME.reconciling`, any
other where it likes: `--with package.module:function`.
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
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, DataType, LongType, StringType, StructField, StructType

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
        StructField("delete_marker", BooleanType()),
        StructField("latest", BooleanType()),
        StructField("sequencer", StringType()),
        StructField("gone", BooleanType()),
    ]
)
"""What a registry says of an object, or of a version; `gone`: only that it was deleted. What is null it does not know, and that
is not compared."""

_TYPES: dict[DataType, str] = {StringType(): "text", LongType(): "bigint", BooleanType(): "boolean"}
KINDS = ("missing", "extra", "different", "misplaced")
"""`misplaced`: it is right, but is or is not the latest, or is not in its place among the versions of its key."""
MOST_EXAMPLES = 20
_AT_ONCE = 10_000
_ARROW = to_arrow_schema(KNOWN)
_COLUMNS = ", ".join(f"{field.name}::{_TYPES[field.dataType]}" for field in KNOWN)


class Event(NamedTuple):
    """What nobody has heard of, told again. It is no change of the store: `id` says so, and it has no request behind it.

    Compared as texts, byte by byte, `sequencer` is lower than that of every change that the listing may not have seen, and
    higher than all before; of a key's versions the newer has the higher one. So that a version which was missed does not come
    after those that followed it, a key with a finding is told whole: of a version that is right `finding` is None. Such
    a version, and one that is misplaced, needs its place and nothing else.

    Of a bucket elsewhere only the sequencers that the registry has seen are known: there it is higher than these.
    """

    id: str
    event: str
    finding: str | None
    bucket: str
    bucket_id: str | None
    key: str
    version_id: str
    etag: str | None
    size: int | None
    at: datetime | None
    sequencer: str

    @property
    def is_right(self) -> bool:
        """Whether the registry knows it as it is, but for its place."""
        return self.finding in (None, "misplaced")


class Registry(ABC):
    """What a registry MUST offer. Its tables are its own; nothing else is known of them."""

    versions: bool = False
    """Whether it keeps every version, or one row for each key."""
    markers: bool = False
    """Whether it keeps delete markers too."""

    @abstractmethod
    def known(self, spark: SparkSession, listing: Listing) -> DataFrame:
        """What it knows of a bucket: the columns of KNOWN. See `from_query`."""

    def wanted(self, held: DataFrame) -> DataFrame:
        """Those of a listing that it would have registered."""
        return held

    @abstractmethod
    def repair(self, events: Sequence[Event]) -> int:
        """Put these through its own merge, as if they had come as events; returns how many findings that changed.

        It may be called again with the same ones, and beside the consumer. Of a key the newest version comes first: should it
        end half-way, the latest is right, and the finding is found again.
        """


def load(name: str, settings: Settings) -> Registry:
    """A registry of ours by its name, or anybody's: `package.module:function`."""
    module, colon, function = name.partition(":")
    try:
        make = getattr(import_module(module if colon else f"tidings.consumers.{name}.reconciling"), function or "registry")
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
            for found in fetch(url, f"select {_COLUMNS} from ({query}) as known where {mine}"):
                yield pa.RecordBatch.from_arrays([found.column(f.name).cast(f.type) for f in _ARROW], schema=_ARROW)


def compared(held: DataFrame, known: DataFrame, versions: bool) -> DataFrame:
    """Every object, or version, of either side, with what is wrong about it: null if nothing is. Both anti-joins in one."""
    of_registry = known.where(~F.coalesce("gone", F.lit(False))).select(
        "key",
        F.coalesce("version_id", F.lit("null")).alias("version_id"),
        F.btrim("etag", F.lit('"')).alias("known_etag"),
        F.col("size").alias("known_size"),
        F.col("delete_marker").alias("known_delete_marker"),
        F.col("latest").alias("known_latest"),
        F.col("sequencer").alias("known_sequencer"),
        F.lit(True).alias("is_known"),
    )
    of_bucket = held.withColumn("is_held", F.lit(True))
    if not versions:
        of_registry = of_registry.withColumnRenamed("version_id", "known_version")
    joined = of_bucket.join(of_registry, on=["key", "version_id"] if versions else ["key"], how="full")
    missing, extra = F.col("is_known").isNull(), F.col("is_held").isNull()
    differ = _differ("etag") | _differ("size") | _differ("delete_marker")
    kind = F.when(missing, "missing").when(extra, "extra").when(differ, "different")
    if versions:
        of_key = Window.partitionBy("key", missing, extra)
        age, known_age = (F.row_number().over(of_key.orderBy(by)) for by in ("place", "known_sequencer"))
        out_of_order = F.col("known_sequencer").isNotNull() & (age != known_age)
        kind = kind.when(_differ("latest") | out_of_order, "misplaced")
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
        "place",
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
    misplaced: int
    repaired: int
    examples: list[dict[str, Any]] = field(default_factory=list)


def reconcile(
    spark: SparkSession, listing: Listing, registry: Registry, repair: bool, progress: Progress | None = None
) -> Found:
    known = registry.known(spark, listing).persist()
    held = registry.wanted(listed(spark, listing, registry.versions, registry.markers))
    both = compared(held, known, registry.versions).persist()
    try:
        with told(spark, "compare a bucket with a registry", progress) if progress else nullcontext():
            known.count()  # before the listing: what it has heard by now, the listing has seen
            counted = both.groupBy("kind").agg(F.count("*").alias("count"), F.count("is_known").alias("known")).collect()
        by_kind = {row["kind"]: row["count"] for row in counted}
        wrong = both.where(F.col("kind").isNotNull())
        examples = wrong.orderBy("key", "version_id").limit(MOST_EXAMPLES).collect()
        repaired = 0
        if repair:
            rows_left = to_tell(both, known, registry.versions).toLocalIterator()
            while rows := list(islice(rows_left, _AT_ONCE)):
                repaired += registry.repair([event(row, listing) for row in rows])
    finally:
        both.unpersist()
        known.unpersist()
    return Found(
        listed=sum(by_kind.values()) - by_kind.get("extra", 0),
        known=sum(row["known"] for row in counted),
        missing=by_kind.get("missing", 0),
        extra=by_kind.get("extra", 0),
        different=by_kind.get("different", 0),
        misplaced=by_kind.get("misplaced", 0),
        repaired=repaired,
        examples=[row.asDict() for row in examples],
    )


def to_tell(both: DataFrame, known: DataFrame, versions: bool) -> DataFrame:
    """All versions of the keys with a finding, numbered by age, of each key the newest first."""
    wrong = both.where(F.col("kind").isNotNull())
    keys = wrong.select("key").distinct()
    rows = both.join(keys, "key", "left_semi") if versions else wrong
    seen = known.join(keys, "key", "left_semi").groupBy("key").agg(F.max("sequencer").alias("seen"))
    by_age = Window.partitionBy("key").orderBy(F.col("place").asc_nulls_first(), "version_id")
    numbered = rows.withColumn("number", F.row_number().over(by_age)).join(seen, "key", "left")
    return numbered.orderBy("key", F.col("number").desc())


def event(row: Row, listing: Listing) -> Event:
    """What the registry should have heard: the object as it is, or that it is gone. The same finding has the same id."""
    gone = row.kind == "extra"
    name = names.DELETE if gone else names.MARKER if row.delete_marker else names.PUT
    what = "/".join([name, listing.bucket, row.version_id or "null", str(row.etag), str(row.modified_at), row.key])
    # A dot comes before all digits: with one more part, a text stays below the next number, and one without any is the lowest.
    sequencer = f"{listing.sequencer or row.seen or ''}.{row.number:08X}"
    return Event(
        f"reconcile-{uuid5(NAMESPACE_URL, what)}",
        name,
        row.kind,
        listing.bucket,
        listing.id,
        row.key,
        row.version_id or "null",
        None if gone else row.etag,
        None if gone else row.size,
        row.modified_at,
        sequencer,
    )
