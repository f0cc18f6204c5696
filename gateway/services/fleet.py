"""The workers behind the routers, and the models they serve."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.protocol.fleet import KvEventSource, WorkerView
from gateway.requests.served_model import Adapter, ServedModel
from gateway.services.convert import to_served_model, to_worker_view
from gateway.services.fingerprints import system_fingerprints
from gateway.services.fleet_counters import FleetCounters
from gateway.services.routers import RouterSession
from quire.errors import NotFound, QuireError, Unavailable
from quire.options.kv_transfer import CONSUMER, GRPC, PRODUCER
from quire.runners import ENCODE, wrong_runner
from quire.v1 import admin_pb2, common_pb2, engine_pb2, router_pb2

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_FAST_POLL_SECONDS = 0.1  # while nothing is ready
_HEARD = (
    router_pb2.WORKER_STATE_READY, router_pb2.WORKER_STATE_DRAINING, router_pb2.WORKER_STATE_EJECTED,
    router_pb2.WORKER_STATE_PAUSED,
)  # fmt: skip
# How long models stay known after a router last reported them. Whether a worker can serve a request for one is for the
# router to decide: it queues the request, or refuses it.
_REMEMBERED_SECONDS = 60.0
_LOAD_SECONDS = 150.0  # to load an adapter on all workers
_LIST_SECONDS = 2.0  # a router that takes longer counts as down, and the next one is asked


class EngineKey(NamedTuple):
    """Which workers count as one engine: those of a model that have the same data-parallel rank.

    Attributes:
        model: its main name.
        rank: 0 without data parallelism.
    """

    model: str
    rank: int


class Fleet:
    """The workers, as last reported by a router."""

    def __init__(self, routers: Collection[RouterSession]) -> None:
        """
        Args:
            routers: a view that follows changes.
        """
        self._known = routers
        self._favourite: RouterSession | None = None  # the router that most recently reported ready workers
        self._told = router_pb2.ListWorkersResponse()
        self._counters: dict[EngineKey, FleetCounters] = {}
        self._aliases: Sequence[router_pb2.ModelAlias] = ()
        self._remembered: dict[str, tuple[common_pb2.ModelInfo, float]] = {}  # main name → model, time of the report
        # Served name → model: ready models first, then those that were ready recently; main names first. An alias maps
        # to the first of its models that is known.
        self.models: Mapping[str, ServedModel] = {}
        self.reads_media = False  # whether any of them does
        # Whether any worker lets others pull KV blocks, and whether any pulls those of others.
        self.lets_pull = False
        self.pulls = False
        self.system_fingerprints: Mapping[str, str] = {}  # by served name, see `system_fingerprints`

    @property
    def workers(self) -> Sequence[router_pb2.Worker]:
        """All workers that the router knows."""
        workers: Sequence[router_pb2.Worker] = self._told.workers
        return workers

    async def run(self) -> None:
        """Polls the routers until cancelled. While none answers, no worker counts as ready."""
        while True:
            self._take(await self._ask())
            self._count()
            await asyncio.sleep(_POLL_SECONDS if self.ready else _FAST_POLL_SECONDS)

    @property
    def _routers(self) -> list[RouterSession]:
        """All routers, in the order in which to ask them."""
        return sorted(self._known, key=lambda router: (router.leaving, router is not self._favourite))

    def _count(self) -> None:
        for worker in self.workers:
            if worker.model_info.served_model_names and worker.HasField("load"):
                counters = self._counters.setdefault(engine_key(worker.model_info), FleetCounters())
                counters.take(worker.address, worker.load.counters)

    async def _ask(self) -> router_pb2.ListWorkersResponse:
        """Returns the first answer with a ready worker; failing that, the first with any worker, or an empty one."""
        found = router_pb2.ListWorkersResponse()
        for router in self._routers:
            answer = await _list_workers(router)
            if _ready(answer.workers):
                self._favourite = router
                return answer
            found = found if found.workers else answer
        return found

    def _take(self, told: router_pb2.ListWorkersResponse) -> None:
        now = time.monotonic()
        self._told = told
        self._aliases = told.aliases if told.workers else self._aliases
        serving = [worker for worker in told.workers if not _encodes_only(worker)]
        for worker in (*serving, *self.ready):  # ready workers last, so that they win for a name
            for name in worker.model_info.served_model_names[:1]:
                self._remembered[name] = worker.model_info, now
        self._remembered = {
            name: (info, when) for name, (info, when) in self._remembered.items() if now - when < _REMEMBERED_SECONDS
        }
        self.models = self._served()
        self.reads_media = any(model.media for model in self.models.values())
        if told.workers:
            infos = [worker.model_info for worker in told.workers]
            roles = {info.kv_role for info in infos if info.kv_connector == GRPC}
            self.lets_pull, self.pulls = bool(roles - {CONSUMER}), bool(roles - {PRODUCER})
        known = [info for info, _ in self._remembered.values()]
        ready = [worker.model_info for worker in self.ready]
        self.system_fingerprints = {
            **system_fingerprints(known, self._aliases), **system_fingerprints(ready, self._aliases)
        }  # fmt: skip

    @property
    def views(self) -> list[WorkerView]:
        """The workers as shown by `/fleet`."""
        return [to_worker_view(worker) for worker in self.workers]

    @property
    def kv_event_sources(self) -> list[KvEventSource]:
        """KV event sources of the workers that are currently reachable."""
        return [KvEventSource(worker.address) for worker in self.workers if worker.state in _HEARD]

    @property
    def heard(self) -> list[router_pb2.Worker]:
        """Reachable workers that have reported a model that they serve, whether or not they take requests now."""
        heard = [worker for worker in self.workers if worker.state in _HEARD and worker.model_info.served_model_names]
        return [worker for worker in heard if not _encodes_only(worker)]

    @property
    def counters(self) -> Mapping[EngineKey, common_pb2.EngineCounters]:
        """Totals of the engines' counters, including those of workers that have left. They never decrease."""
        return {engine: counters.total for engine, counters in self._counters.items()}

    @property
    def loads(self) -> Mapping[EngineKey, Sequence[common_pb2.EngineLoad]]:
        """Loads, one per reachable worker."""
        loads: dict[EngineKey, list[common_pb2.EngineLoad]] = {}
        for worker in self.heard:
            loads.setdefault(engine_key(worker.model_info), []).append(worker.load)
        return loads

    @property
    def ready(self) -> list[router_pb2.Worker]:
        """Workers that take requests."""
        return _ready(self.workers)

    def _served(self) -> Mapping[str, ServedModel]:
        # The smallest max_model_len of a name wins: any of its workers may get the request.
        ready = sorted((worker.model_info for worker in self.ready), key=lambda info: info.max_model_len)
        infos = [*ready, *(info for info, _ in self._remembered.values())]
        models: dict[str, ServedModel] = {}
        for info in infos:
            if any(name not in models for name in info.served_model_names) or info.adapters:
                for name, model in to_served_model(info).by_name():
                    models.setdefault(name, model)
        for alias in self._aliases:
            known = [models[name] for name in alias.models if name in models]
            if known:
                models.setdefault(alias.name, known[0])
        return models

    async def load_adapter(self, adapter: Adapter, in_place: bool) -> None:
        """Loads an adapter on the workers, which resolve its revision. `models` includes it afterwards.

        Raises:
            QuireError: the workers could not load it.
        """
        request = engine_pb2.LoadAdapterRequest(
            name=adapter.name, path=adapter.path, base_model_name=adapter.base_model_name, in_place=in_place
        )
        await self._change(lambda router: router.stub.LoadAdapter, request, _LOAD_SECONDS)

    async def unload_adapter(self, name: str, wait_seconds: float) -> int:
        """Unloads an adapter from the workers; returns how many requests still used it when the wait was over.

        Raises: as `load_adapter`.
        """
        request = engine_pb2.UnloadAdapterRequest(name=name, wait_ms=round(wait_seconds * 1000))
        answer = await self._change(lambda router: router.stub.UnloadAdapter, request, wait_seconds + _LOAD_SECONDS)
        return int(answer.live_requests)

    async def administer(
        self, command: admin_pb2.AdminCommand, workers: Sequence[str], seconds: float
    ) -> admin_pb2.RouterAdminServiceAdministerResponse:
        """Sends an operator command to the given workers, or to all if none are given, then polls the router again.

        Raises:
            QuireError: no router could carry it out.
        """
        request = admin_pb2.RouterAdminServiceAdministerRequest(command=command, workers=workers)
        answer: admin_pb2.RouterAdminServiceAdministerResponse
        answer = await self._change(lambda router: router.admin_stub.Administer, request, seconds)
        return answer

    async def _change(self, method: Callable[[RouterSession], Callable[..., Any]], request: Any, seconds: float) -> Any:
        """Makes a call on the first router that answers, since all routers have the same workers; then polls again."""
        failure: QuireError = Unavailable("No router can be reached; try again in a moment.")
        for router in self._routers:
            try:
                answer = await router.call(method(router), request, seconds)
            except Unavailable as error:
                failure = error
                continue
            self._take(await self._ask())
            return answer
        raise failure

    def model(self, name: str | None, runner: str = "") -> ServedModel:
        """Returns the model of that name; without a name, the first one.

        Args:
            runner: the runner the model must be served with; empty for any.

        Raises:
            Unavailable: no worker has reported a model recently.
            NotFound: no model is served under that name.
            InvalidRequest: the model is served with a different runner.
        """
        if not self.models:
            raise Unavailable("Loading model: no engine worker is ready yet; try again in a moment.")
        if name and name not in self.models:
            raise NotFound(
                f"The model {name[:200]!r} does not exist. Served here: {', '.join(self.models)}.", parameter="model"
            )
        asked = [self.models[name]] if name else list(self.models.values())
        found = next((model for model in asked if not runner or model.runner == runner), None)
        if found is None:
            raise wrong_runner(name or asked[0].main_name, asked[0].runner)
        return found


def engine_key(info: common_pb2.ModelInfo) -> EngineKey:
    """The key of a worker that has reported a model."""
    return EngineKey(info.served_model_names[0], info.data_parallel_rank)


async def _list_workers(router: RouterSession) -> router_pb2.ListWorkersResponse:
    """Returns what the router answers, or nothing if it does not."""
    try:
        answer: router_pb2.ListWorkersResponse = await router.call(
            router.stub.ListWorkers, router_pb2.ListWorkersRequest(), _LIST_SECONDS
        )
    except QuireError as error:
        logger.debug("router %s does not answer: %s", router.address, error.message)
        return router_pb2.ListWorkersResponse()
    return answer


def _ready(workers: Sequence[router_pb2.Worker]) -> list[router_pb2.Worker]:
    return [worker for worker in workers if worker.state == router_pb2.WORKER_STATE_READY and not _encodes_only(worker)]


def _encodes_only(worker: router_pb2.Worker) -> bool:
    """Whether it serves no model, but encodes images for workers that do."""
    return bool(worker.model_info.runner == ENCODE)
