"""Notification configuration: who wants which changes, at which destination.

`model` is what a rule is, `xml` how tenants write it, `overlaps` what a bucket's rules must not be together, `table` where they
are kept, `notification` what a PUT and a GET do with them, `test_event` what a destination must take first. `lookup` is how
a write finds the rules of its bucket, `cache` a copy in Redis that all API processes share, which may be old or away
(`breaker`). `listing` is all rules for the operator, `draft` a rule that nobody has set yet.
Whether a rule wants a change is asked in three places: `match` (Python), `columns` (Spark) and `table.MATCHED` (inside
the statement that writes an object). One truth table holds all three to the same answer.
"""
