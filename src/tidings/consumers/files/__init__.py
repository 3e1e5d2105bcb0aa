"""The file registry of seed 002: S3 events come in through a signed webhook, and each version of a file is one row."""
