"""ASGI middleware: authentication, request ids, the path of a proxy in front."""
