"""The object store: what a key holds, and the change that says so, written together. Knows nothing of HTTP."""
