"""`tidings consume`: the consumers, each a process of its own."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from tidings import log
from tidings import settings as settings_module
from tidings.cli.printing import AsJson, say
from tidings.cli.running import stop_on_signals

app = typer.Typer(help="Run a consumer: a registry that is fed by events.", no_args_is_help=True)


@app.command()
def uploads(
    once: Annotated[bool, typer.Option("--once", help="Take what is in the queue, and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Keep the upload registry: notifications from the queue, through Spark. `tidings uploads init` makes the queue.

    A message that fails is tried three times more, then the queue moves it to its dead letters. Ctrl-C stops.
    """
    from tidings import bootstrap
    from tidings.consumers.uploads import job

    settings = settings_module.load()
    log.to_stderr(settings)
    stop = threading.Event()
    stop_on_signals(stop)
    tally = bootstrap.consume_uploads(settings, once, stop)
    say(as_json, job.figures(tally), job.words(tally))
