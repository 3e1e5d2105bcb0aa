"""Calls to addresses that a tenant chose: which URLs are taken, which networks are reached, and how a connection is made."""
