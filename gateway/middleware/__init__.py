"""ASGI middleware: authentication and request ids."""
