"""Loading and unloading of adapters while the engine runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from engine_svc.adapters.adapter import Adapter
from engine_svc.adapters.registry import AdapterRegistry
from engine_svc.core.loop import EngineLoop
from quire.bounds import Bound
from quire.errors import Overloaded

MAX_WAIT_SECONDS = 600
# Loads that may run or wait at once: each reads a whole adapter.
_MAX_LOADS = 64


class ServedAdapters:
    """The adapters that are served, for requests, callers and routers. Called in the event loop."""

    def __init__(self, registry: AdapterRegistry, loop: EngineLoop) -> None:
        self._registry = registry
        self._loop = loop
        self._turn = asyncio.Lock()  # so that the last adapter loaded under a name stays
        self._num_loads = 0

    @property
    def version(self) -> int:
        """Changes whenever the set of served adapters changes."""
        return self._registry.version

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """All served adapters."""
        return self._registry.adapters

    def find(self, name: str) -> Adapter | None:
        """The adapter that a request's model name refers to; None if there is none."""
        return self._registry.find(name)

    async def load(self, name: str, path: str, base_model_name: str, in_place: bool) -> Adapter:
        """Loads and serves an adapter; see EngineService.LoadAdapter.

        Raises:
            FailedPrecondition, InvalidRequest, Overloaded: see `AdapterRegistry.read` and `put`.
            Unavailable: the engine has died.
        """
        self._registry.check_updating()
        if self._num_loads >= _MAX_LOADS:
            raise Overloaded(f"{_MAX_LOADS} adapters are being loaded already; try again later.")
        self._num_loads += 1
        try:
            async with self._turn:
                return await self._load(name, path, base_model_name, in_place)
        finally:
            self._num_loads -= 1

    async def _load(self, name: str, path: str, base_model_name: str, in_place: bool) -> Adapter:
        adapter = await asyncio.to_thread(self._registry.read, name, path, base_model_name)
        served = self._registry.find(name)
        if served is not None:
            is_same = (served.revision, served.base_model_name) == (adapter.revision, adapter.base_model_name)
            if replace(adapter, key=served.key) == served or (is_same and not in_place and not served.has_changed()):
                return served
            in_place |= is_same
        replaced = self._registry.put(adapter, in_place)
        if replaced is not None:
            await self._loop.retire_adapter(replaced)
        return adapter

    async def unload(self, name: str, wait_seconds: float) -> int:
        """Unloads an adapter and waits for the last request that uses it; returns how many still use it afterwards.

        Raises:
            FailedPrecondition, NotFound: see `AdapterRegistry.remove`.
            InvalidRequest: the wait is too long.
            Unavailable: the engine has died.
        """
        Bound(0, MAX_WAIT_SECONDS * 1000).check("wait_ms", wait_seconds * 1000)
        return await self._loop.retire_adapter(self._registry.remove(name), wait_seconds)
