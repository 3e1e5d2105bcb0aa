"""`tidings inventory`: what the live inventory knows. `tidings consume inventory` keeps it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from tidings import settings as settings_module
from tidings.cli.connection import database
from tidings.cli.printing import AsJson, out, say
from tidings.errors import OperatorError

app = typer.Typer(help="Look into the live inventory, sum it up, or copy it as Parquet.", no_args_is_help=True)


class By(StrEnum):
    BUCKET = "bucket"
    PREFIX = "prefix"
    TYPE = "type"
    DAY = "day"


@app.command("list")
def list_(
    bucket: str,
    prefix: Annotated[str, typer.Option(help="Only keys that begin with this.")] = "",
    versions: Annotated[bool, typer.Option("--versions", help="All versions, with delete markers.")] = False,
    most: Annotated[int, typer.Option(help="So many rows at most.", min=1)] = 1000,
    as_json: AsJson = False,
) -> None:
    """A bucket's objects, or all their versions, by key."""
    from tidings.consumers.inventory import listing

    with database() as connection:
        rows = listing.versions(connection, bucket, prefix, not versions, most)
    columns = ("key", "version_id", "is_latest", "delete_marker", "size", "etag", "content_type", "event_at")
    _print(
        rows, columns if versions else ("key", "size", "etag", "content_type", "event_at"), as_json, "nothing is known there"
    )


@app.command()
def show(where: Annotated[str, typer.Argument(metavar="s3://BUCKET/KEY")], as_json: AsJson = False) -> None:
    """All that is known of one key, versions that were deleted included."""
    from tidings.consumers.inventory import listing

    bucket, slash, key = where.removeprefix("s3://").partition("/")
    if not where.startswith("s3://") or not slash or not key:
        raise OperatorError(f"{where[:100]!r} does not name an object: write s3://BUCKET/KEY.")
    with database() as connection:
        rows = listing.history(connection, bucket, key)
    columns = ("version_id", "is_latest", "delete_marker", "tombstone", "size", "etag", "event_type", "sequencer", "event_at")
    _print(rows, columns, as_json, f"no event has spoken of {where}")


@app.command()
def rollup(
    by: Annotated[By, typer.Option(help="What to sum up by, within each bucket.")] = By.BUCKET,
    depth: Annotated[int, typer.Option(help="How many folders deep prefixes go.", min=1, max=100)] = 1,
    bucket: Annotated[str | None, typer.Option(help="Only this bucket.")] = None,
    as_json: AsJson = False,
) -> None:
    """Objects and bytes. Versions count all that are kept, objects only what a reader sees."""
    from tidings.consumers.inventory.rollup import rollup as sum_up

    with database() as connection:
        rows = sum_up(connection, by.value, depth, bucket)
    group = () if by is By.BUCKET else (by.value,)
    columns = ("bucket", *group, "objects", "bytes", "versions", "version_bytes", "delete_markers")
    _print(rows, columns, as_json, "the inventory is empty")


@app.command()
def export(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A new folder, or what Spark takes for one (s3a://…).")],
    as_json: AsJson = False,
) -> None:
    """A copy of one moment as Parquet, in folders by bucket and day, for analysis."""
    from tidings import bootstrap
    from tidings.consumers.inventory.export import local_folder

    written = bootstrap.export_inventory(settings_module.load(), local_folder(folder))
    say(as_json, {"folder": folder, "versions": written}, f"{written} versions are in {folder}")


@app.command()
def positions(as_json: AsJson = False) -> None:
    """How far each partition of the topics was read."""
    from tidings.consumers.inventory import listing

    with database() as connection:
        rows = listing.positions(connection)
    _print(rows, ("cluster", "topic", "partition", "next_offset"), as_json, "nothing was read yet")


@app.command()
def rejects(most: Annotated[int, typer.Option(help="So many rows at most.", min=1)] = 100, as_json: AsJson = False) -> None:
    """Messages that could not be used, the newest first, and why."""
    from tidings.consumers.inventory import listing

    with database() as connection:
        rows = listing.rejects(connection, most)
    _print(rows, ("cluster", "topic", "partition", "offset", "reason", "rejected_at"), as_json, "no message was refused")


def _print(rows: Sequence[dict[str, Any]], columns: Sequence[str], as_json: bool, nothing: str) -> None:
    if as_json:
        out.print(json.dumps(rows, default=str))
        return
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*("" if row[name] is None else str(row[name]) for name in columns))
    out.print(table if rows else nothing)
