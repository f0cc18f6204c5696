"""Traces of requests across all services."""
