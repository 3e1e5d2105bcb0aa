"""What a bucket holds, listed by Spark in parallel ranges of keys: a bucket of ours from its tables, any other through S3.

A range is (after, upto]: ranges that follow each other list every key once, whatever comes and goes meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from string import ascii_letters, digits
from typing import Any, LiteralString, NamedTuple, Protocol

import pyarrow as pa
from defusedxml import ElementTree
from psycopg import Connection, sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType, TimestampType

from tidings import settings as settings_module
from tidings.changestream.reader import fetch
from tidings.delivery import existing
from tidings.errors import OperatorError
from tidings.rules.listing import find_bucket

LISTED = StructType(
    [
        StructField("key", StringType()),
        StructField("version_id", StringType()),
        StructField("etag", StringType()),
        StructField("size", LongType()),
        StructField("modified_at", TimestampType()),
        StructField("latest", BooleanType()),
        StructField("delete_marker", BooleanType()),
        StructField("place", LongType()),
    ]
)
"""A version; its id is `null` where the bucket has none for it. A delete marker has neither tag nor size. Of a key's versions
the newer one has the higher `place`."""

_ARROW = to_arrow_schema(LISTED, timezone="UTC")
_FOR_EACH_TASK = 4
"""Ranges for each task slot: they are not of one size."""
_WRITER_PATIENCE_SECONDS = 600.0


class Range(NamedTuple):
    """Keys after the first up to and with the second; None for no end."""

    after: str
    upto: str | None


class Listing(Protocol):
    """A bucket that can be listed. `sequencer` is lower than that of every change which the listing may not have seen."""

    @property
    def bucket(self) -> str: ...

    @property
    def id(self) -> str | None:
        """The bucket's own, which its name may share with another's; None where nobody says."""
        ...

    @property
    def sequencer(self) -> str | None: ...

    def ranges(self, wanted: int) -> list[Range]: ...

    def read(self, part: Range, versions: bool, markers: bool) -> Iterator[pa.RecordBatch]: ...


def between(points: Sequence[str]) -> list[Range]:
    """The ranges that these keys, in order, cut the bucket into."""
    return [Range(after, upto) for after, upto in zip(["", *points], [*points, None], strict=True)]


def listed(spark: SparkSession, listing: Listing, versions: bool, markers: bool) -> DataFrame:
    """The newest version of every key, or every version; with or without delete markers."""
    parts = listing.ranges(spark.sparkContext.defaultParallelism * _FOR_EACH_TASK)
    read = partial(_read, listing=listing, parts=tuple(parts), versions=versions, markers=markers)
    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, LISTED)


def _read(
    batches: Iterator[pa.RecordBatch], listing: Listing, parts: Sequence[Range], versions: bool, markers: bool
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from listing.read(parts[number], versions, markers)


# A bucket of ours.

_COLUMNS: LiteralString = """
    key, version_id, case when not delete_marker then etag end as etag, case when not delete_marker then size end as size,
    modified_at, {latest} as latest, delete_marker, ordinal as place
"""
_POINTS = """
select key from (
    select key, row_number() over (order by key) as n, count(*) over () as keys from heads where bucket_id = %(id)s)
where n %% greatest(1, keys / %(wanted)s) = 0 and n < keys order by key
"""


@dataclass(frozen=True)
class Ours:
    bucket: str
    id: str
    sequencer: str | None
    points: Sequence[str]

    @classmethod
    def of(cls, connection: Connection, project: str, bucket: str, wanted: int = 64) -> Ours:
        """A sequencer is drawn, then who was writing by then is waited for: whatever has a lower one is in the listing."""
        found = find_bucket(connection, project, bucket)
        row = connection.execute("select nextval('change_seq')").fetchone()
        assert row is not None
        connection.commit()
        waited_for, end = existing.writers(connection).keys(), time.monotonic() + _WRITER_PATIENCE_SECONDS
        while left := waited_for & existing.writers(connection).keys():
            if time.monotonic() > end:
                raise OperatorError(
                    f"{len(left)} transactions are writing objects since 10 minutes: end them, or try again later."
                )
            connection.commit()
            time.sleep(0.05)
        points = [row[0] for row in connection.execute(_POINTS, {"id": found.id, "wanted": wanted}).fetchall()]
        connection.commit()
        return cls(bucket, found.id, f"{row[0]:016X}", points)

    def ranges(self, wanted: int) -> list[Range]:
        step = max(1, len(self.points) // wanted)
        return between(self.points[step - 1 :: step])

    def read(self, part: Range, versions: bool, markers: bool) -> Iterator[pa.RecordBatch]:
        tables = [("heads", "true"), ("versions", "false")] if versions else [("heads", "true")]
        queries = [
            sql.SQL("select {columns} from {table} where bucket_id = {id} and key > {after}{upto}{markers}").format(
                columns=sql.SQL(_COLUMNS.format(latest=latest)),
                table=sql.Identifier(table),
                id=sql.Literal(self.id),
                after=sql.Literal(part.after),
                upto=sql.SQL("") if part.upto is None else sql.SQL(" and key <= {}").format(sql.Literal(part.upto)),
                markers=sql.SQL("") if markers else sql.SQL(" and not delete_marker"),
            )
            for table, latest in tables
        ]
        # In one statement: a version that moves from one table to the other is in one of them.
        query = sql.SQL(" union all ").join(queries).as_string(None)
        for batch in fetch(settings_module.load().database_url, query):
            yield pa.RecordBatch.from_arrays([batch.column(f.name).cast(f.type) for f in _ARROW], schema=_ARROW)


# Any other, through S3.


@dataclass(frozen=True)
class Elsewhere:
    """A bucket behind an S3 endpoint. There is no sequencer to be had: nobody else draws from theirs."""

    bucket: str
    endpoint: str
    region: str
    access_key_id: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    id: str | None = None
    sequencer: str | None = None

    @classmethod
    def of(cls, bucket: str, endpoint: str) -> Elsewhere:
        """With the credentials that boto3 finds: variables, files, roles."""
        import boto3

        session = boto3.Session()
        found = session.get_credentials()
        if found is None:
            raise OperatorError("There are no credentials for the endpoint: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.")
        keys = found.get_frozen_credentials()
        return cls(bucket, endpoint, session.region_name or "us-east-1", keys.access_key, keys.secret_key, keys.token)

    def client(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret,
            aws_session_token=self.token,
            config=Config(retries={"max_attempts": 8, "mode": "standard"}),
        )

    def ranges(self, wanted: int) -> list[Range]:
        """Cut at the folders of the top, or, where there is one only, of that. Where there are too few, at letters too."""
        from botocore.exceptions import BotoCoreError, ClientError

        client, prefix = self.client(), ""
        while True:
            try:
                page = client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, Delimiter="/")
            except (BotoCoreError, ClientError) as error:
                raise OperatorError(f"{self.endpoint} does not list the bucket {self.bucket!r}: {error}") from None
            folders = [each["Prefix"] for each in page.get("CommonPrefixes", ())]
            if len(folders) != 1 or page.get("Contents"):
                break
            [prefix] = folders
        return between(points(folders, prefix, wanted))

    def read(self, part: Range, versions: bool, markers: bool) -> Iterator[pa.RecordBatch]:
        for page in self._pages(part, versions, markers):
            rows = [row for row in page if part.upto is None or row["key"] <= part.upto]
            yield pa.RecordBatch.from_pylist(rows, schema=_ARROW)
            if len(rows) < len(page):
                return

    def _pages(self, part: Range, versions: bool, markers: bool) -> Iterator[list[dict[str, Any]]]:
        client = self.client()
        if not versions:
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, StartAfter=part.after):
                yield [_version(each, latest=True) for each in page.get("Contents", ())]
            return
        kinds: list[str] = []

        def seen(http_response: Any, **_: Any) -> None:
            kinds[:] = [each.tag.rpartition("}")[2] for each in ElementTree.fromstring(http_response.content)]

        # Of each key the newest comes first, but boto3 takes versions and markers apart, and times may be equal.
        client.meta.events.register("after-call.s3.ListObjectVersions", seen)
        listed = 0
        # A key marker without a version leads behind the key, as `after` does; an empty one is none.
        start = {"KeyMarker": part.after} if part.after else {}
        for page in client.get_paginator("list_object_versions").paginate(Bucket=self.bucket, **start):
            found = {
                "Version": (_version(each) for each in page.get("Versions", ())),
                "DeleteMarker": (_version(each, marker=True) for each in page.get("DeleteMarkers", ())),
            }
            rows = [next(found[kind]) for kind in kinds if kind in found]
            placed = [{**row, "place": -place} for place, row in enumerate(rows, listed)]
            yield [row for row in placed if markers or not row["delete_marker"]]
            listed += len(rows)


def points(folders: Sequence[str], prefix: str, wanted: int) -> list[str]:
    """Keys to cut a bucket at, in order: some of its folders; and letters, where folders are too few."""
    found = {*folders, *((prefix + letter for letter in digits + ascii_letters) if len(folders) < wanted else ())}
    ordered = sorted(found)
    return ordered[:: max(1, len(ordered) // wanted)]


def _version(found: dict[str, Any], latest: bool = False, marker: bool = False) -> dict[str, Any]:
    return {
        "key": found["Key"],
        "version_id": found.get("VersionId", "null"),
        "etag": None if marker else found["ETag"].strip('"'),
        "size": None if marker else found["Size"],
        "modified_at": found["LastModified"],
        "latest": latest or found["IsLatest"],
        "delete_marker": marker,
        "place": 0,
    }
