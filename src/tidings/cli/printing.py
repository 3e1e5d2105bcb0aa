"""How commands print: data to stdout, words about it to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
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
