"""`tidings consume`: the consumers, each a process of its own."""

from __future__ import annotations

import typer

app = typer.Typer(help="Run a consumer: a registry that is fed by events.", no_args_is_help=True)
