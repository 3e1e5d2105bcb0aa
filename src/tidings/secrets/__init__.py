"""Secrets at rest: encrypted under data keys, which are wrapped under a master key that the database never sees (ADR 13)."""
