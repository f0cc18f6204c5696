"""The routers and workers that the client asks are those of the router's own tests."""

from __future__ import annotations

from tests.router.conftest import start_engine, start_router

__all__ = ["start_engine", "start_router"]
