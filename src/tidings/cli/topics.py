"""`tidings topic`: topics of the embedded Pub/Sub."""

from __future__ import annotations

from typing import Annotated

import typer

from tidings.cli.printing import err, out

app = typer.Typer(help="Topics of the embedded Pub/Sub, for trying things out.", no_args_is_help=True)


@app.command()
def create(topic: Annotated[str, typer.Argument(help="projects/PROJECT/topics/TOPIC")]) -> None:
    """Create a topic, with a subscription that `tidings topic read` reads."""
    from tidings.local import topics

    out.print(f"topic {topics.create(topic)}")


@app.command()
def read(
    topic: Annotated[str, typer.Argument(help="projects/PROJECT/topics/TOPIC")],
    seconds: Annotated[float, typer.Option(help="How long to wait for messages.")] = 5.0,
) -> None:
    """Print the messages that have arrived at a topic, and acknowledge them."""
    from tidings.local import topics

    count = 0
    for body in topics.read(topic, seconds):
        out.print(body)
        count += 1
    err.print(f"{count} messages")
