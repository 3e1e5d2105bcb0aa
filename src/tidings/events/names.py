"""Event names: what a change is called, and what a rule may ask for.

A change has a bare name (`ObjectCreated:Put`). A rule asks with the prefix `s3:` and may use a wildcard
(`s3:ObjectCreated:*`), which stays as it was written and is expanded only where it is used (seed 000, "Event Type Selection").
"""

from __future__ import annotations

PUT = "ObjectCreated:Put"
COPY = "ObjectCreated:Copy"
DELETE = "ObjectRemoved:Delete"
MARKER = "ObjectRemoved:DeleteMarkerCreated"

NAMES = (PUT, COPY, DELETE, MARKER)
"""Every name a change can have. More may come: be ready for unknown ones."""

WILDCARDS = ("s3:ObjectCreated:*", "s3:ObjectRemoved:*")

SUBSCRIBABLE = frozenset(WILDCARDS) | {f"s3:{name}" for name in NAMES}
"""Every value that a rule may name in its events."""


def wanted_by(name: str) -> list[str]:
    """The values of a rule's events that ask for the change `name`: the name itself and its category's wildcard."""
    category = name.partition(":")[0]
    return [f"s3:{name}", f"s3:{category}:*"]
