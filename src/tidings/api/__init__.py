"""The HTTP front. It turns requests into calls of `store` and `rules`, and errors into answers; it writes no SQL."""
