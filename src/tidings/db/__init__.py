"""The database: a pool, and migrations as numbered SQL files. Knows no table of its own but `schema_migrations`."""
