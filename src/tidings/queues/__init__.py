"""Queues as SQS has them, kept in PostgreSQL: at least once, with visibility timeouts, dead letter queues and long polling.

A queue belongs to a project. Its front is `api/sqs.py`; events reach it through `destinations/queue.py`.
"""
