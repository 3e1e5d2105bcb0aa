"""The vocabulary: values only. Nothing here reads, writes or waits, and nothing here imports another package of ours."""
