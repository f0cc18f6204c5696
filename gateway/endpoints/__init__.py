"""Endpoints: one module per family of the API."""
