"""`tidings consume`: the consumers, each a process of its own."""

from __future__ import annotations

import typer

app = typer.Typer(help="Run a consumer: a registry that is fed by events.", no_args_is_help=True)


@app.command()
def files() -> None:
    """Serve the file registry's webhook, POST /api/sns, for messages of SNS. Needs a database: see `tidings settings`."""
    from tidings import settings
    from tidings.consumers.files.server import serve

    serve(settings.load())
