"""Routing policies: one file each, found by name through `registry`."""
