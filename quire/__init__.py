"""Quire: an LLM inference system made of small gRPC services."""

__version__ = "0.1.0"
