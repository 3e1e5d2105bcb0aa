"""Numbered SQL files, and what one of them needs that SQL cannot do."""
