"""The upload registry of seed 004: a put into a bucket, its notification in a queue, and a consumer that writes down the name.

Two paths that know nothing of each other: `front.py` puts and answers; `consuming.py`, which `job.py` runs on Spark, receives,
asks the store what the object is called, and records it. The bucket is the truth, the registry follows.
"""
