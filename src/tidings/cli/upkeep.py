"""Commands for those who look after it: `sweep`, `settings`."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from tidings import settings as settings_module
from tidings.cli.acts import audited, begin
from tidings.cli.printing import AsJson, counting, out, say


@audited("sweep")
def sweep(
    min_age_minutes: Annotated[float, typer.Option(help="Leave younger blobs alone. Less than 60 is not safe.", min=0)] = 360,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="The blobs were another database's, and this one has taken its place.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove blobs that nothing refers to, and end multipart uploads that were abandoned. `serve` does it regularly."""
    from tidings import bootstrap

    begin()
    done = bootstrap.sweep(settings_module.load(), min_age_minutes, adopt, counting("looked at"))
    words = f"{done.seen} blobs looked at, {done.removed} orphans and {done.expired_parts} parts of old uploads removed"
    say(as_json, {"seen": done.seen, "removed": done.removed, "expired_parts": done.expired_parts}, words)


def settings(as_json: AsJson = False) -> None:
    """Print the effective settings, secrets masked, each with what it means."""
    effective = settings_module.load()
    values = settings_module.masked(effective)
    if as_json:
        out.print(json.dumps(values, indent=2, default=str))
        return
    table = Table("setting", "value", "meaning", box=None)
    for section, inner in values.items():
        fields = type(getattr(effective, section)).model_fields
        for name, value in inner.items():
            table.add_row(f"TIDINGS_{section}__{name}".upper(), str(value), fields[name].description or "")
    out.print(table)
