"""Notification configuration: who wants which changes, at which destination.

`model` is what a rule is, `xml` how tenants write it, `table` where it is kept, `notification` what a PUT and a GET do.
Whether a rule wants a change is asked in three places, and answered by one truth table: `match` (Python), `columns` (Spark)
and `table.MATCHED` (inside the statement that writes an object).
"""
