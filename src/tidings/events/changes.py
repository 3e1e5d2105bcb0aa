"""What a change says of the rules that want it."""

from __future__ import annotations

UNREAD = "*"
"""In place of their numbers: they could not be read when the change was written, and the stream has to decide."""
