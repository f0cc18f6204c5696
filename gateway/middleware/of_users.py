"""Loads an operator's own middleware: ASGI middleware classes, or functions of a request and the next handler."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, cast

from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from quire.errors import StartupError


def middleware_of(path: str) -> Middleware:
    """
    Args:
        path: import path, such as package.module.Name.

    Raises:
        StartupError: it cannot be imported, or is neither a class nor an async function.
    """
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise StartupError(f"--middleware {path} cannot be imported: {error}.") from error
    if inspect.isclass(found):
        return Middleware(cast("Any", found))
    if inspect.iscoroutinefunction(found):
        return Middleware(BaseHTTPMiddleware, dispatch=found)
    raise StartupError(f"--middleware {path} is neither a class nor an async function.")
