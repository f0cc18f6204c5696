"""Runs one Ray actor per rank, on the nodes of an existing Ray cluster.

Ray starts the actors, assigns their GPUs and reports when one of them dies. Everything else uses our own connections
(network.py), whose secret the actors get through Ray. Ray itself pickles what it passes within its cluster: anyone who
can reach the cluster can run code in it, whatever we do.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_svc.executor.broadcast import Broadcast, Inbox
from engine_svc.executor.interfaces import use_interface_of
from engine_svc.executor.network import RankListener, connect
from engine_svc.executor.ranked import RankedExecutor
from engine_svc.executor.ranks import RankGroup
from engine_svc.parallel.layout import layout_of
from quire.errors import StartupError
from quire.options.engine import EngineOptions
from quire.options.executor import ExecutorOptions
from quire.options.model import ModelOptions

_PLACE_SECONDS = 60.0
# Time for actors to start, including importing torch.
_MEET_SECONDS = 300.0
# Time from the closing of an actor's channel until Ray knows why it ended.
_END_SECONDS = 1.5
_CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class Place:
    """Node and process of an actor.

    Attributes:
        port: a port that was free there a moment ago.
    """

    node: str
    process: int
    port: int


class RankActor:
    """The actor that Ray runs for each rank."""

    def place(self) -> Place:
        """Returns where the actor runs."""
        import ray

        node = ray.util.get_node_ip_address()
        with socket.create_server((node, 0)) as free:
            return Place(node, os.getpid(), free.getsockname()[1])

    def serve(self, host: str, port: int, secret: bytes, rank: int) -> None:
        """Carries out the worker's commands until it is gone."""
        import ray

        from engine_svc.executor.rank import RankProcess

        use_interface_of(ray.util.get_node_ip_address())
        channel = connect(host, port, secret, rank, 0, _MEET_SECONDS)
        RankProcess(channel, Inbox(channel)).serve()


class RayExecutor(RankedExecutor):
    """Runs ranks as Ray actors, placed as close to each other as possible."""

    spans_machines = True
    _connected = False  # we connected to the cluster, so we disconnect

    def _start(self, model: ModelOptions, options: EngineOptions) -> RankGroup:
        try:
            import ray
        except ImportError as error:
            raise StartupError(
                "--distributed-executor-backend ray needs Ray, which is not installed: pip install 'quire[ray]'."
            ) from error
        connects = not ray.is_initialized()
        try:
            ray.init(address="auto", ignore_reinit_error=True, configure_logging=False)
        except ConnectionError as error:
            raise StartupError(
                "There is no Ray cluster here: start one with `ray start --head`, and `ray start "
                "--address=HOST:6379` on the other nodes, or set RAY_ADDRESS."
            ) from error
        uses_gpus = options.kernels.device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
        self._connected = connects
        return RayRanks(layout_of(options.parallel).num_ranks, options.parallel.executor, uses_gpus)

    def close(self) -> None:
        """See Executor.close."""
        super().close()
        if self._connected:
            import ray

            ray.shutdown()
            self._connected = False


class RayRanks(RankGroup):
    """Actors in a placement group of our own, or in bundles of the current one."""

    def __init__(self, num_ranks: int, options: ExecutorOptions, uses_gpus: bool) -> None:
        """
        Raises:
            StartupError: the cluster has no room for the ranks, or they do not start.
        """
        import ray

        self._ray = ray
        self._serving: list[Any] = []
        self._owns_group = not options.ray_bundle_indices
        needs = {"GPU": options.ray_per_worker_gpus} if uses_gpus else {"CPU": 1.0}
        self._group, bundles = self._place(num_ranks, options, needs)
        self._actors = [self._make_actor(bundle, options, needs) for bundle in bundles]
        try:
            self._places: list[Place] = ray.get(
                [actor.place.remote() for actor in self._actors], timeout=_MEET_SECONDS
            )  # fmt: skip
            self._meet(options)
        except (ray.exceptions.RayError, OSError) as error:
            self.kill()
            self.wait()
            raise StartupError(f"The ranks cannot be started under Ray: {error}") from error

    def _place(self, num_ranks: int, options: ExecutorOptions, needs: Mapping[str, float]) -> tuple[Any, Sequence[int]]:
        """Returns the placement group, and the bundle of each rank."""
        if options.ray_bundle_indices:
            return self._bundles_of_ours(num_ranks, options.ray_bundle_indices)
        group = self._ray.util.placement_group([dict(needs)] * num_ranks, self._strategy(num_ranks, needs))
        try:
            self._ray.get(group.ready(), timeout=_PLACE_SECONDS)
        except self._ray.exceptions.GetTimeoutError as error:
            self._ray.util.remove_placement_group(group)
            raise StartupError(
                f"The Ray cluster has no room for {num_ranks} ranks of {dict(needs)} each: it has "
                f"{self._ray.cluster_resources()}, of which {self._ray.available_resources()} are free."
            ) from error
        return group, range(num_ranks)

    def _bundles_of_ours(self, num_ranks: int, indices: str) -> tuple[Any, Sequence[int]]:
        group = self._ray.util.get_current_placement_group()
        try:
            bundles = [int(index) for index in indices.split(",")]
        except ValueError as error:
            raise StartupError(
                f"--ray-bundle-indices {indices}: expected comma-separated numbers, such as 0,1."
            ) from error
        if group is None or len(set(bundles)) != num_ranks or not set(bundles) <= set(range(group.bundle_count)):
            within = f"{group.bundle_count} bundles" if group else "no placement group"
            raise StartupError(
                f"--ray-bundle-indices {indices} must name {num_ranks} bundles, one for each rank, of the placement "
                f"group that this process is in, which has {within}."
            )
        return group, bundles

    def _strategy(self, num_ranks: int, needs: Mapping[str, float]) -> str:
        """The placement strategy: all ranks on one node if one has enough room."""
        ((name, amount),) = needs.items()
        nodes = [node["Resources"].get(name, 0) for node in self._ray.nodes() if node["Alive"]]
        return "STRICT_PACK" if max(nodes, default=0) >= num_ranks * amount else "PACK"

    def _make_actor(self, bundle: int, options: ExecutorOptions, needs: Mapping[str, float]) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return self._ray.remote(RankActor).options(
            num_cpus=needs.get("CPU", 0), num_gpus=needs.get("GPU", 0), max_restarts=0,
            runtime_env={"nsight": "default"} if options.ray_workers_use_nsight else None,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, bundle),
        ).remote()  # fmt: skip

    def _meet(self, options: ExecutorOptions) -> None:
        host, secret = options.host_ip or self._ray.util.get_node_ip_address(), secrets.token_bytes(32)
        with contextlib.closing(RankListener(host, options.rank_port, secret)) as listener:
            self._serving = [
                actor.serve.remote(host, listener.port, secret, rank) for rank, actor in enumerate(self._actors)
            ]
            come = listener.accept(set(range(len(self._actors))), _MEET_SECONDS, self._check)
        self.channels = [come[rank].channel for rank in sorted(come)]
        self.devices = [0] * len(self.channels)  # Ray makes only its own GPUs visible to each
        self.broadcast = Broadcast(self.channels)
        self.rendezvous = f"tcp://{self._places[0].node}:{self._places[0].port}"

    def _check(self, missing: set[int]) -> None:
        """Checks that all actors are running.

        Raises:
            RayError: an actor has ended.
        """
        ended, _ = self._ray.wait(self._serving, num_returns=1, timeout=0)
        self._ray.get(ended)

    def name(self, rank: int) -> str:
        """See RankGroup."""
        place = self._places[rank]
        return (
            f"rank {rank} (process {place.process} on {place.node}, actor {self._actors[rank]._actor_id.hex()} of Ray)"
        )

    def end(self, rank: int) -> str:
        """See RankGroup."""
        try:
            self._ray.get(self._serving[rank], timeout=_END_SECONDS)
        except self._ray.exceptions.GetTimeoutError:
            return "has closed its channel; Ray does not know why yet"
        except self._ray.exceptions.RayError as error:
            return f"has ended; Ray says: {' '.join(str(error).split())}"
        return "has ended"

    def tell_where(self) -> None:
        """See RankGroup. Does nothing: what actors write is in the logs of their nodes."""

    def kill(self) -> None:
        """See RankGroup."""
        for actor in self._actors:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(actor)

    def wait(self) -> None:
        """See RankGroup."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            if self._serving:
                self._ray.wait(self._serving, num_returns=len(self._serving), timeout=_CLOSE_SECONDS)
            self.kill()
            if self._owns_group:
                self._ray.util.remove_placement_group(self._group)
