"""Which formats may be chosen. What they say is in `tidings.formats`, which brings Spark along."""

from __future__ import annotations

FORMAT_TAG = "event-format"
"""The tag of a topic or a queue that chooses."""
CHOOSABLE = ("cloudevents", "cos", "r2", "s3")
"""Those that tell of a bucket's changes. The others are for a catalog's, and have no body for an object."""
