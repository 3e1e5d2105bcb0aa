"""How commands print: data to stdout, words about it to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

# What is printed is data: rich must not read a meaning into its brackets and colons. In a pipe nothing is cut off.
out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False, width=None if sys.stdout.isatty() else 1000)
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def say(as_json: bool, values: dict[str, Any], words: str) -> None:
    out.print(json.dumps(values) if as_json else words)


def counting(what: str) -> Callable[[int], None]:
    """Progress for long work, for a person at a terminal."""

    def show(number: int) -> None:
        if sys.stderr.isatty():
            err.print(f"\r{number} {what}", end="")

    return show


@contextmanager
def progress_bar(first: str, then: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar for a person at a terminal, nothing elsewhere. It says `first` until it is told how much is done, of how much."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*parts, console=err, transient=True) as bar:
        task = bar.add_task(first, total=None)
        yield lambda done, total: bar.update(task, description=then, completed=done, total=total or None)
