"""The log of changes: windows and positions in PostgreSQL, and the same log as a Spark data source.

A change is in window w if it is visible in the snapshot of w and not in that of w - 1. That set never changes, so it can
be read again, in parts and after any crash. `seq` alone would not do: it is drawn before its transaction commits.
"""
