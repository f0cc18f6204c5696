"""Requests to generate: what they ask for, checked and in the services' terms, and how far they have come."""
