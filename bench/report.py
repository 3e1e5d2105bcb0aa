"""The report: a table to read and a file to keep. Neither says whose machine it was."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.measure import Figure
from tidings.local import postgres

LATEST = Path(__file__).with_name("latest.json")


def header() -> dict[str, Any]:
    """The machine and the versions. Take it before anything is measured: the load should be that of others."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": {
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "architecture": platform.machine(),
            "load_before": round(os.getloadavg()[0], 2),
        },
        "versions": {
            "python": platform.python_version(),
            "postgresql": _first_words([str(postgres._programs() / "postgres"), "--version"]).split()[-1],
            "pyspark": version("pyspark"),
            "java": _first_words([_java(), "-version"]).split('"')[1],
        },
    }


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else shutil.which("java") or "java"


def _first_words(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return (done.stdout or done.stderr).splitlines()[0]


def show(out: Console, head: dict[str, Any], figures: Sequence[Figure], quick: bool) -> None:
    table = Table("name", "value", "bar", "holds", "range", box=None, header_style="bold")
    for figure in figures:
        low, high = figure.range
        holds = "[green]yes[/]" if figure.holds else "[bold red]NO[/]"
        mark = "~" if quick else ""
        value = f"{mark}{figure.value:.3g} {figure.unit}".strip()
        table.add_row(figure.name, value, str(figure.bar), holds, f"{low:.3g}–{high:.3g}")  # noqa: RUF001
    out.print(table)
    for figure in figures:
        out.print(f"\n[bold]{figure.name}[/]  ", end="")
        out.print(figure.note, markup=False)
    machine, versions = head["machine"], head["versions"]
    out.print(
        f"\n{machine['cores']} cores ({machine['architecture']}), {machine['memory_gib']:g} GiB,"
        f" load {machine['load_before']:g} before; Python {versions['python']}, PostgreSQL {versions['postgresql']},"
        f" pyspark {versions['pyspark']}, Java {versions['java']}",
        markup=False,
    )
    if quick:
        out.print("[yellow]~ the short form: fewer rows and repeats, nothing is written, nothing to quote[/]")
    for figure in figures:
        if not figure.holds:
            out.print(f"[bold red]{figure.name} does not hold its bar {figure.bar}: {figure.value:.3g}[/]")


def write(head: dict[str, Any], figures: Sequence[Figure], file: Path = LATEST) -> None:
    rows = [
        {
            "name": figure.name,
            "value": _rounded(figure.value),
            "bar": str(figure.bar),
            "holds": figure.holds,
            "range": [_rounded(end) for end in figure.range],
            "unit": figure.unit,
            "note": figure.note,
        }
        for figure in figures
    ]
    file.write_text(json.dumps({"header": head, "figures": rows}, indent=2, ensure_ascii=False) + "\n")


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
