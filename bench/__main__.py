"""Measure, print a table, write bench/latest.json."""

from __future__ import annotations

import argparse
import signal
import sys
from types import ModuleType

from rich.console import Console

from bench import (
    backlog,
    catalog_commits,
    catalog_routing,
    churn,
    delivered,
    drain,
    eventing,
    files,
    inventory,
    large,
    latency,
    lookup,
    many,
    neighbour,
    report,
    small,
    webhook,
)
from bench.measure import CannotMeasure, Figure
from tidings.errors import TidingsError

# Those with a stack come first: the JVM that drain starts in this process stays until it ends.
MODULES: tuple[ModuleType, ...] = (
    *(latency, churn, neighbour, eventing, small, large, lookup, delivered, webhook, backlog, many),
    *(catalog_commits, drain, catalog_routing, inventory, files),
)
NAMES = (
    *(*drain.NAMES, *delivered.NAMES, *webhook.NAMES, *backlog.NAMES, *latency.NAMES, *churn.NAMES, *neighbour.NAMES),
    *(*eventing.NAMES, *small.NAMES, *large.NAMES, *lookup.NAMES, *many.NAMES, *catalog_commits.NAMES, *catalog_routing.NAMES),
    *(*inventory.NAMES, *files.NAMES),
)
"""In the order of the report."""


def main() -> int:
    arguments = _arguments()
    out, err = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # raises, so that everything is stopped and removed
    wanted = arguments.names or list(NAMES)
    head = report.header()
    figures: list[Figure] = []
    try:
        with err.status("starting") as status:
            for module in MODULES:
                names = [name for name in wanted if name in module.NAMES]
                if names:
                    label = module.__name__.rpartition(".")[2]
                    figures += module.measure(names, arguments.quick, lambda doing, of=label: status.update(f"{of}: {doing}"))
    except (CannotMeasure, TidingsError) as error:
        err.print(f"bench: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        err.print(f"bench: stopped ({status.status})")
        return 1
    figures.sort(key=lambda figure: NAMES.index(figure.name))
    report.show(out, head, figures, arguments.quick)
    if not arguments.quick and not arguments.names:
        report.write(head, figures)
        out.print("written to bench/latest.json")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure, print a table, write bench/latest.json. The status is 0 even where a bar does not hold.",
        epilog="Only a whole run is written: figures of different days in one file would say nothing.",
    )
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(NAMES) + "; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer rows and repeats; nothing is written")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in NAMES]:
        parser.error(f"there is no figure {unknown[0]!r}; there are {', '.join(NAMES)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
