"""Notification configuration: who wants which changes, at which destination.

`model` is what a rule is, `xml` how tenants write it, `table` where it is kept, `notification` what a PUT and a GET do.
`listing` is all rules for the operator, `draft` a rule that nobody has set yet.
Whether a rule wants a change is asked in three places: `match` (Python), `columns` (Spark) and `table.MATCHED` (inside
the statement that writes an object). One truth table holds all three to the same answer.
"""
