"""Traces of requests over all services."""
