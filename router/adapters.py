"""LoRA adapters across the whole fleet: all workers of a model serve the same ones.

The fleet's adapters are whatever its workers report, so that any number of routers see the same. All that a router
remembers is which adapters it has unloaded: a worker that restarts serves those of its --lora-modules again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any
from weakref import WeakValueDictionary

from quire.bounds import MAX_ADAPTERS
from quire.errors import FailedPrecondition, InvalidRequest, NotFound, QuireError, Unavailable
from quire.v1 import common_pb2, engine_pb2
from router.workers.eligible import served_models
from router.workers.remote import RemoteWorker
from router.workers.state import State

logger = logging.getLogger(__name__)


class FleetAdapters:
    """Loads and unloads adapters on all workers, and brings joining workers up to date with the others."""

    def __init__(self, workers: Callable[[], Collection[RemoteWorker]], aliases: Collection[str] = ()) -> None:
        """
        Args:
            aliases: alias names of models, which no adapter may have.
        """
        self._workers = workers
        self._aliases = aliases
        self._welcomes: set[asyncio.Task[None]] = set()
        self._turns = WeakValueDictionary[str, asyncio.Lock]()  # of names being loaded, or waiting for it
        self._unloaded = dict[str, None]()  # names unloaded and not loaded since, oldest first; the last MAX_ADAPTERS

    async def load(self, request: engine_pb2.LoadAdapterRequest) -> common_pb2.AdapterInfo:
        """Has all workers of the model serve an adapter, or none of those that did not serve it before.

        This includes workers that take no requests now but will later, and those that join in the meantime. When one
        worker cannot load it, it is unloaded from those that just did.

        Raises:
            QuireError: the error of the first worker that cannot load it.
        """
        async with self._turn(request.name):
            return await self._load(request)

    def _turn(self, name: str) -> asyncio.Lock:
        """The lock whose holder may change which workers serve a name."""
        return self._turns.setdefault(name, asyncio.Lock())

    async def _load(self, request: engine_pb2.LoadAdapterRequest) -> common_pb2.AdapterInfo:
        workers = self._that_may_serve(request)
        models = {worker.names[0] for worker in workers}
        self._check_name(request.name, models)
        results: dict[RemoteWorker, Any] = {}
        new: list[RemoteWorker] = []
        while workers:
            new += [worker for worker in workers if request.name not in worker.adapters]
            loading = (worker.load_adapter(request) for worker in workers)
            results |= zip(workers, await asyncio.gather(*loading, return_exceptions=True), strict=True)
            if failure := _failure(request, results.values()):
                await self._undo(request.name, new)
                raise failure
            there = [worker for worker in self._workers() if _is_there(worker) and worker not in results]
            workers = [worker for worker in there if worker.names[0] in models]
        self._unloaded.pop(request.name, None)
        logger.info("adapter %s is on %d workers, from %s", request.name, len(results), request.path)
        adapter: common_pb2.AdapterInfo = next(iter(results.values()))
        return adapter

    async def _undo(self, name: str, workers: Sequence[RemoteWorker]) -> None:
        request = engine_pb2.UnloadAdapterRequest(name=name)
        having = [worker for worker in workers if name in worker.adapters]
        await asyncio.gather(*(worker.unload_adapter(request) for worker in having), return_exceptions=True)

    async def unload(self, request: engine_pb2.UnloadAdapterRequest) -> int:
        """Unloads an adapter from all workers that have it; returns how many requests still used it after the wait.

        Raises:
            NotFound: no worker has it.
            QuireError: the error of the first worker that does not unload it; the others have.
        """
        async with self._turn(request.name):  # a load in progress has ended by then
            workers = [worker for worker in self._workers() if request.name in worker.adapters]
            if not workers:
                raise NotFound(f"No worker serves an adapter named {request.name[:256]!r}.", parameter="name")
            self._remember_unloaded(request.name)
        unloading = (worker.unload_adapter(request) for worker in workers)
        results = await asyncio.gather(*unloading, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, NotFound):
                raise result
        return sum(result for result in results if isinstance(result, int))

    def _remember_unloaded(self, name: str) -> None:
        self._unloaded[name] = None
        if len(self._unloaded) > MAX_ADAPTERS:
            del self._unloaded[next(iter(self._unloaded))]

    def welcome(self, worker: RemoteWorker) -> None:
        """Loads the other workers' adapters on a worker that has joined, or is back, and unloads those that were
        unloaded from the others."""
        if worker.encodes_only:
            return
        task = asyncio.create_task(self._bring_up_to_date(worker))
        self._welcomes.add(task)
        task.add_done_callback(self._welcomes.discard)

    async def close(self) -> None:
        """Cancels the loads under way."""
        for task in self._welcomes:
            task.cancel()
        await asyncio.gather(*self._welcomes, return_exceptions=True)

    async def _bring_up_to_date(self, worker: RemoteWorker) -> None:
        for name in list(worker.adapters):
            if name in self._aliases:
                logger.warning(
                    "worker %s serves an adapter named %s, which no request reaches, because that is an alias "
                    "(--model-alias); give one of them another name", worker.address, name,
                )  # fmt: skip
            await self._unload_again(name, worker)
        await self._bring(worker)

    async def _unload_again(self, name: str, worker: RemoteWorker) -> None:
        """Unloads an adapter that was unloaded from the other workers. One that is merely new is kept: the fleet may be
        restarted worker by worker with other --lora-modules."""
        async with self._turn(name):
            if name not in self._unloaded or not self._is_unloaded(name, worker):
                return
            try:
                await worker.unload_adapter(engine_pb2.UnloadAdapterRequest(name=name))
                logger.info("worker %s has unloaded the adapter %s, as the other workers had", worker.address, name)
            except QuireError as error:
                logger.warning("adapter %s could not be unloaded again: %s", name, error.message)

    async def _bring(self, worker: RemoteWorker) -> None:
        for adapter in self._missing(worker):
            request = engine_pb2.LoadAdapterRequest(
                name=adapter.name, path=adapter.path, base_model_name=adapter.base_model_name
            )
            try:
                if self._is_unloaded(adapter.name, worker):
                    continue
                await worker.load_adapter(request)
                logger.info(
                    "worker %s has loaded the adapter %s, as the other workers have", worker.address, adapter.name
                )
                if self._is_unloaded(adapter.name, worker):  # while it was being loaded
                    await worker.unload_adapter(engine_pb2.UnloadAdapterRequest(name=adapter.name))
            except QuireError as error:
                logger.warning("adapter %s of other workers could not be loaded: %s", adapter.name, error.message)

    def _missing(self, worker: RemoteWorker) -> Sequence[common_pb2.AdapterInfo]:
        info = worker.model_info
        if info is None or not info.max_loras:
            return ()
        infos = (other.model_info for other in self._others(worker))
        found = {adapter.name: adapter for other in infos if other for adapter in other.adapters}
        return [adapter for name, adapter in found.items() if name not in worker.adapters]

    def _is_unloaded(self, name: str, worker: RemoteWorker) -> bool:
        """Whether there are other workers of this worker's model, and none of them serves the adapter any more."""
        others = self._others(worker)
        return bool(others) and not any(name in other.adapters for other in others)

    def _others(self, worker: RemoteWorker) -> Sequence[RemoteWorker]:
        others = [each for each in self._workers() if each is not worker and _is_there(each)]
        return [other for other in others if other.names[0] == worker.names[0]]

    def _check_name(self, name: str, models: Collection[str]) -> None:
        """
        Args:
            models: main names of the models that the adapter is for.

        Raises:
            InvalidRequest: the name already stands for something else.
        """
        if name in self._aliases:
            raise InvalidRequest(
                f"{name} is an alias (--model-alias); choose another name for the adapter.", parameter="name"
            )
        others = served_models([each for each in self._workers() if each.names and each.names[0] not in models])
        if name in others:
            raise InvalidRequest(
                f"{name} is a name of the model {others[name]}, or of an adapter on it; choose another name for the "
                "adapter.",
                parameter="name",
            )

    def _that_may_serve(self, request: engine_pb2.LoadAdapterRequest) -> Sequence[RemoteWorker]:
        """
        Raises:
            QuireError: no worker may, or the request does not say which model the adapter is for.
        """
        there = [worker for worker in self._workers() if _is_there(worker)]
        if not there:
            raise Unavailable("No engine worker is ready; try again in a moment.")
        bases = sorted(set(served_models(there).values()))
        if len(bases) > 1:
            there = [worker for worker in there if request.base_model_name in worker.names]
            if not there:
                raise InvalidRequest(
                    f"base_model_name is {request.base_model_name[:256]!r}; it must be the model that the adapter is "
                    f"for, one of {', '.join(bases)}.", parameter="base_model_name",
                )  # fmt: skip
        if not any(worker.model_info and worker.model_info.max_loras for worker in there):
            raise FailedPrecondition("The engine workers do not support adapters; start them with --enable-lora.")
        return there


def _failure(request: engine_pb2.LoadAdapterRequest, results: Collection[Any]) -> BaseException | None:
    """Why an adapter is not on all workers: the first error among their answers, or that their revisions differ. None
    means it is."""
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors or len({result.revision for result in results}) == 1:
        return next(iter(errors), None)
    return FailedPrecondition(f"The folder {request.path!r} differs between workers; give all of them the same files.")


def _is_there(worker: RemoteWorker) -> bool:
    """Whether the worker takes requests, or will again later with the adapters it has by then: it is ready or ejected,
    or an operator has paused it, drained it or put it to sleep."""
    if worker.encodes_only:
        return False
    condition = worker.condition
    return worker.model_info is not None and (condition.held or condition.state in (State.READY, State.EJECTED))
