"""A versioned catalog as Nessie has it, kept in PostgreSQL: branches and tags, commits of contents, merge and transplant.

A repository belongs to a project. Its front is `api/catalog.py`. Whatever changes it appends its events to the change stream in
its own transaction (`appending.py`).
"""
