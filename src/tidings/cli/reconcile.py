"""`tidings reconcile`: what a registry knows against what a bucket holds."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from tidings import settings as settings_module
from tidings.cli.acts import audited, begin
from tidings.cli.connection import database
from tidings.cli.printing import AsJson, err, out, progress_bar


@audited("reconcile --repair", "with_", "bucket", when="repair")
def reconcile(
    bucket: Annotated[str, typer.Argument(help="The bucket to list.")],
    with_: Annotated[
        str, typer.Option("--with", help="The registry: files, inventory or uploads; or package.module:function of another.")
    ],
    endpoint: Annotated[
        str, typer.Option(help="List the bucket at this S3 endpoint, with the credentials that boto3 finds. Ours if not said.")
    ] = "",
    project: Annotated[str, typer.Option(help="The project of a bucket of ours.")] = "default",
    repair: Annotated[bool, typer.Option("--repair", help="Tell the registry what it has missed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare a registry with a bucket, by a Spark job: what it misses, what it has too much, what is different there.

    With --repair the registry's own merge gets an event for each. What is still on its way is found missing too: it is repaired
    once, and when it comes it changes nothing.
    """
    from tidings import bootstrap
    from tidings.consumers import reconcile as reconciling
    from tidings.consumers.bucket_listing import Elsewhere, Listing, Ours

    settings = settings_module.load()
    registry = reconciling.load(with_, settings)
    listing: Listing
    if endpoint:
        listing = Elsewhere.of(bucket, endpoint)
    else:
        with database(acts=False) as connection:
            listing = Ours.of(connection, project, bucket)
    begin()
    began = time.monotonic()
    with progress_bar("starting Spark", "listing and comparing") as progress:
        found = bootstrap.with_small_spark(
            settings, lambda spark: reconciling.reconcile(spark, listing, registry, repair, progress)
        )
    if as_json:
        out.print(json.dumps({"bucket": bucket, "with": with_, **asdict(found)}, default=str))
    else:
        table = Table("kind", "key", "version", "in the bucket", "in the registry", box=None)
        for row in found.examples:
            sides = ((row["etag"], row["size"]), (row["known_etag"], row["known_size"]))
            table.add_row(row["kind"], row["key"], row["version_id"], *(f"{etag or '-'} {size or '-'}" for etag, size in sides))
        if found.examples:
            out.print(table)
        out.print(
            f"{found.listed} in {bucket}, {found.known} in {with_}: {found.missing} missing, {found.extra} extra, "
            f"{found.different} different, {found.misplaced} misplaced" + (f"; {found.repaired} repaired" if repair else "")
        )
    err.print(f"it took {time.monotonic() - began:.1f} s")
