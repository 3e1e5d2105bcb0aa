"""`tidings uploads`: the upload registry's bucket and queue, and its HTTP front. `tidings consume uploads` keeps it."""

from __future__ import annotations

from dataclasses import asdict

import typer

from tidings import settings as settings_module
from tidings.cli.printing import AsJson, say

app = typer.Typer(help="The upload registry: make what it needs, and serve its front.", no_args_is_help=True)


@app.command()
def init(as_json: AsJson = False) -> None:
    """Make the queue, its dead letter queue, the bucket, and the rule between them. Again, it mends what is otherwise."""
    from tidings.consumers.uploads.init import MAX_RECEIVES, RETENTION_SECONDS, init

    made = init(settings_module.load())
    lines = (
        f"bucket        {made.bucket}",
        f"queue         {made.queue_url}, in the format r2",
        f"dead letters  {made.dead_letters_url}, after {MAX_RECEIVES} receives, for {RETENTION_SECONDS // 86_400} days",
        f"rule          {made.rule}: objects that are created",
        f"changed       {', '.join(made.changed) or 'nothing: everything was there'}",
    )
    say(as_json, {**asdict(made), "changed": list(made.changed)}, "\n".join(lines))


@app.command()
def serve() -> None:
    """Serve POST, GET and DELETE /api/uploads at TIDINGS_UPLOADS__HOST and TIDINGS_UPLOADS__PORT."""
    from tidings.consumers.uploads.serving import serve

    serve(settings_module.load())
