"""ASGI middleware: authentication, request ids, tracing, the path prefix of a proxy, shutdown."""
