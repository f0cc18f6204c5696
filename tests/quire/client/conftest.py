"""The client's tests use the routers and workers of the router's own tests."""

from __future__ import annotations

from tests.router.conftest import start_engine, start_router

__all__ = ["start_engine", "start_router"]
