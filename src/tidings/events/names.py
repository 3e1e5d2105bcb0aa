"""Event names: what a change is called, and what a rule may ask for.

A change has a bare name (`ObjectCreated:Put`). A rule asks with the prefix `s3:` and may use a wildcard
(`s3:ObjectCreated:*`), which stays as it was written and is expanded only where it is used (seed 000, "Event Type Selection").
Which names there are for a tenant is a matter of the profile (`tidings.events.profiles`).
"""

from __future__ import annotations

PUT = "ObjectCreated:Put"
POST = "ObjectCreated:Post"
COPY = "ObjectCreated:Copy"
MULTIPART = "ObjectCreated:CompleteMultipartUpload"
DELETE = "ObjectRemoved:Delete"
MARKER = "ObjectRemoved:DeleteMarkerCreated"

NAMES = (PUT, POST, COPY, MULTIPART, DELETE, MARKER)
"""Every name a change can have. More may come: be ready for unknown ones."""

WILDCARDS = ("s3:ObjectCreated:*", "s3:ObjectRemoved:*")


def wanted_by(name: str) -> list[str]:
    """The values of a rule's events that ask for the change `name`: the name itself and its category's wildcard."""
    category = name.partition(":")[0]
    return [f"s3:{name}", f"s3:{category}:*"]
