"""What the pool is told of a task. It needs no driver, so settings and commands may import it."""

from __future__ import annotations

from contextvars import ContextVar

project: ContextVar[str] = ContextVar("project", default="")
"""The project that a task works for, once that is verified: it may have its share of the pool's connections."""
