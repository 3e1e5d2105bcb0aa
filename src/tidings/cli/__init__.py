"""The command line: `tidings --help`. One module for each group of commands; what a command needs it imports when it runs."""

from __future__ import annotations

import logging
import os
import sys

import typer

from tidings import log
from tidings.cli import (
    access,
    audit,
    buckets,
    catalog,
    consume,
    dead_letters,
    explain,
    files,
    inventory,
    lanes,
    projects,
    queues,
    reconcile,
    replay,
    rules,
    running,
    secrets,
    subscriptions,
    topics,
    upkeep,
    uploads,
)
from tidings.cli.printing import err
from tidings.errors import OperatorError

app = typer.Typer(
    help="Every change of a bucket reaches its destination: at least once, in order per key, through Apache Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    running.up,
    running.serve,
    running.stream,
    running.migrate,
    upkeep.sweep,
    upkeep.settings,
    replay.replay,
    reconcile.reconcile,
    explain.explain,
    running.demo,
):
    app.command()(command)
app.add_typer(projects.app, name="project")
app.add_typer(buckets.app, name="bucket")
app.add_typer(access.app, name="access")
app.add_typer(secrets.app, name="secrets")
app.add_typer(audit.app, name="audit")
app.add_typer(rules.app, name="rules")
app.add_typer(topics.app, name="topic")
app.add_typer(catalog.app, name="catalog")
app.add_typer(consume.app, name="consume")
app.add_typer(inventory.app, name="inventory")
app.add_typer(files.app, name="files")
app.add_typer(lanes.app, name="lanes")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(queues.app, name="queues")
app.add_typer(uploads.app, name="uploads")


def main() -> None:
    os.umask(0o077)  # what a command writes, the blobs of `serve` among it, is nobody else's
    try:
        app()
    except OperatorError as error:
        if log.is_json():
            logging.getLogger("tidings").critical("%s", error)
        else:
            err.print(f"tidings: {error}", style="red")
        sys.exit(2)
