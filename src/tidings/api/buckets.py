"""The operations on buckets."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from tidings.api import numbers, xml
from tidings.api.parts import Parts
from tidings.api.request import Request
from tidings.api.response import Response
from tidings.errors import CallerError
from tidings.store import buckets

XML = {"content-type": "application/xml"}


def iso(moment: datetime) -> str:
    """A time as S3's documents have it: UTC, milliseconds, Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"


async def list_buckets(parts: Parts, request: Request) -> Response:
    query = request.target.query
    prefix = query.get("prefix", "")
    most = numbers.between(query, "max-buckets", 1, buckets.MOST_LISTED, buckets.MOST_LISTED)
    found = []
    if query.get("bucket-region", parts.settings.api.region) == parts.settings.api.region:
        after = query.get("continuation-token", "")
        found = await buckets.list_all(parts.pool, request.project, prefix, after, most + 1)
    owner = [("ID", request.project), ("DisplayName", request.project)]
    now, grant = time.time(), request.principal.grant
    listed = [
        ("Bucket", [("Name", each.name), ("CreationDate", iso(each.created_at))])
        for each in found[:most]
        if grant.sees(each.name, now)
    ]
    document: list[xml.Node] = [("Owner", owner), ("Buckets", listed)]
    if prefix:
        document.append(("Prefix", prefix))
    if len(found) > most:
        document.append(("ContinuationToken", found[most - 1].name))
    return Response(200, XML, xml.document("ListAllMyBucketsResult", document))


async def create_bucket(parts: Parts, request: Request) -> Response:
    region = parts.settings.api.region
    wanted = xml.location_constraint(await request.document())
    if wanted not in (None, region):
        raise CallerError(
            "IllegalLocationConstraintException",
            f"The location constraint {wanted!r} is not the region of this endpoint, {region!r}.",
        )
    await buckets.create(parts.pool, request.project, request.bucket)
    return Response(200, {"location": f"/{request.bucket}"})


async def head_bucket(parts: Parts, request: Request) -> Response:
    await buckets.check_exists(parts.pool, request.project, request.bucket)
    return Response(200, {"x-amz-bucket-region": parts.settings.api.region})


async def get_bucket_location(parts: Parts, request: Request) -> Response:
    await buckets.check_exists(parts.pool, request.project, request.bucket)
    region = parts.settings.api.region
    # us-east-1 is older than location constraints: it has none.
    named = "" if region == "us-east-1" else region
    return Response(200, XML, xml.document("LocationConstraint", named))


async def delete_bucket(parts: Parts, request: Request) -> Response:
    await buckets.delete(parts.pool, request.project, request.bucket)
    return Response(204)
