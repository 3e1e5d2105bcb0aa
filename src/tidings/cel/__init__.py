"""Filters as expressions in CEL (cel.dev), for catalog events: in process, and for whoever translates them to columns.

`variables.py` is what an expression sees, `expression.py` checks and evaluates one, `tree.py` is what it is made of.
"""
