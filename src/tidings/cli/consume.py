"""`tidings consume`: the consumers, each a process of its own."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from tidings import log
from tidings import settings as settings_module
from tidings.cli.acts import audited, begin
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


@app.command()
@audited("consume inventory --accept-loss", when="accept_loss")
def inventory(
    topic: Annotated[
        list[str] | None, typer.Option(help="A topic to read, in place of the settings'; may be repeated.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(help="The Kafka cluster's name in the settings.")] = None,
    once: Annotated[bool, typer.Option("--once", help="End when everything is read that is there now.")] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on where messages are gone unread, or a topic was made anew.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Keep a row for every object version, from the notifications (format cos) in Kafka. A second one waits for the first.

    Ctrl-C stops: what was read so far is in the inventory, the rest is read next time.
    """
    from tidings import bootstrap
    from tidings.consumers.inventory.job import figures, words

    settings = settings_module.load()
    given = settings.inventory.chosen(topics=topic, cluster=cluster)
    settings = settings.model_copy(update={"inventory": given})
    log.to_stderr(settings)
    stop = threading.Event()
    stop_on_signals(stop)
    begin()
    counts = bootstrap.consume_inventory(settings, once, accept_loss, stop)
    say(as_json, figures(counts), words(counts))


@app.command()
def files() -> None:
    """Serve the file registry's webhook, POST /api/sns, for messages of SNS. Needs a database: see `tidings settings`."""
    from tidings.consumers.files.server import serve

    serve(settings_module.load())
