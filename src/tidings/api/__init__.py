"""The HTTP and gRPC fronts. They turn requests into calls of `store` and `rules`, and errors into answers; no SQL."""
