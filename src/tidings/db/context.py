"""What the pool is told of a task. It needs no driver, so settings and commands may import it."""

from __future__ import annotations

from contextvars import ContextVar

share: ContextVar[str] = ContextVar("share", default="")
"""Whose share of the pool's connections a task uses: its client's address, then the project that its key was verified for."""
