"""Tidings: every change of a bucket reaches its destination, at least once and in order per key."""
