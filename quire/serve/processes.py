"""The processes of a stack: the options, devices and processors that each is started with."""

from __future__ import annotations

import dataclasses
import os
import sys
import typing
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from quire.options.admin import AdminOptions
from quire.options.base import ENVIRONMENT_PREFIX, fields_of, to_arguments
from quire.options.data_parallel import RAY
from quire.options.engine import EngineOptions
from quire.options.generation import GenerationOptions
from quire.options.kernels import KernelOptions
from quire.options.server import GrpcServerOptions
from quire.processors import numa_lists, place_rank, read_machine
from quire.rpc.discovery import split_address
from quire.serve.devices import count_gpus, devices_of_encoders, devices_of_engines
from quire.serve.layout import Layout, StackOptions
from quire.serve.supervisor import ProcessSpec

# Niceness of the services beside an engine. A service that takes a core from one of the engine's threads makes the
# other threads wait for it; between steps the engine leaves the cores idle often enough.
_NICENESS = 5
# Makes glibc's malloc ask for huge pages: a step's hidden states are megabytes, which matrix products traverse row by
# row, and a 4 KiB page holds one or two rows.
_TUNABLES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_ELSEWHERE = (RAY, "external_launcher")  # executors whose ranks may be on other machines


def process_specs(options: StackOptions, layout: Layout) -> list[ProcessSpec]:
    """Returns the processes of the stack, engines first; their options are the user's, with the addresses filled in.

    Raises:
        StartupError: there are GPUs, but not enough for all engines.
    """
    workers = (*options.router.workers, *layout.workers)
    commands: dict[str, Sequence[Any]] = {
        **{name: ("engine", options.model, _engine_options(options.engine, layout, name)) for name in layout.engines},
        **{
            name: ("engine", options.model, _encoder_options(options.engine, layout, index))
            for index, name in enumerate(layout.encoders)
        },
        "router": ("router", dataclasses.replace(options.router, workers=workers)),
        "tokenizer": ("tokenizer", options.model, options.tokenizer),
    }
    gateway = dataclasses.replace(
        options.gateway, router_address=layout.router, tokenizer_address=layout.tokenizer,
        shared_port_folder=layout.shared_port_folder, uds_descriptor=layout.uds_descriptor,
    )  # fmt: skip
    shared = (options.security, options.log, options.tracing)
    drain = options.gateway.drain_timeout_seconds
    devices = {**_devices(options, layout.engines), **_encoder_devices(options, layout)}
    specs = []
    for name, address in layout.own.items():
        command, *groups = commands[name]
        host, port = split_address(address)
        server = GrpcServerOptions(
            host, port, options.gateway.insecure, metrics_port=layout.metrics[name], drain_timeout_seconds=drain
        )
        server.check(options.security)
        specs.append(_spec(name, command, *groups, server, *shared, environment=devices.get(name, {})))
    others = dataclasses.replace(gateway, admin=AdminOptions())  # only one of them has the admin port
    gateways = zip(layout.gateways, (gateway, *([others] * len(layout.gateways[1:]))), strict=False)
    descriptors = () if layout.uds_descriptor is None else (layout.uds_descriptor,)
    gateway_specs = [_spec(name, "gateway", chosen, *shared) for name, chosen in gateways]
    return [*specs, *(dataclasses.replace(spec, descriptors=descriptors) for spec in gateway_specs)]


def _engine_options(options: EngineOptions, layout: Layout, name: str) -> EngineOptions:
    """The options of one engine.

    Raises:
        StartupError: see place_rank.
    """
    index, ranks = list(layout.engines).index(name), layout.ranks
    count = options.parallel.num_ranks
    own = dataclasses.replace(options, kernels=_kernel_options(options, layout, index * count, count))
    if ranks.size > 1:
        parallel = dataclasses.replace(
            options.parallel, data_parallel_rank=layout.engines[name], data_parallel_master_port=layout.meeting_port,
            distributed_executor_backend=RAY if ranks.by_ray else options.parallel.distributed_executor_backend,
        )  # fmt: skip
        own = dataclasses.replace(own, parallel=parallel)
    if ranks.registers_elsewhere:
        routers = options.registration.register_with or (ranks.router,)
        own = dataclasses.replace(own, registration=dataclasses.replace(options.registration, register_with=routers))
    return own


def _encoder_options(options: EngineOptions, layout: Layout, index: int) -> EngineOptions:
    """The options of one worker that only encodes: those that concern what it loads and computes.

    Raises:
        StartupError: see place_rank.
    """
    kept = {key: value for key, value in options.images.ec_transfer_config.items() if key == "ec_buffer_size"}
    return EngineOptions(
        form=options.form, generation=GenerationOptions(seed=options.generation.seed), load=options.load,
        scheduler=options.scheduler,
        kernels=_kernel_options(options, layout, len(layout.engines) * options.parallel.num_ranks + index, 1),
        images=dataclasses.replace(options.images, mm_encoder_only=True, ec_transfer_config=kept),
        watchdog=options.watchdog, log_stats=options.log_stats,
    )  # fmt: skip


def _kernel_options(options: EngineOptions, layout: Layout, first: int, ranks: int) -> KernelOptions:
    """The kernel options of one worker, whose ranks share this machine's processors with the ranks of the others.

    Args:
        first: number of its first rank among those of all, of which the encoders come last.

    Raises:
        StartupError: see place_rank.
    """
    kernels = options.kernels
    total = len(layout.engines) * options.parallel.num_ranks + len(layout.encoders)
    if total == ranks:
        return kernels
    machine = read_machine()
    if numa_lists(kernels.numa_bind_nodes, kernels.numa_bind_cpus, machine, total):
        own = slice(first, first + ranks)
        return dataclasses.replace(
            kernels, numa_bind_nodes=kernels.numa_bind_nodes[own], numa_bind_cpus=kernels.numa_bind_cpus[own]
        )
    places = [
        place_rank(
            kernels.cpu_threads_bind, machine, first + rank, total,
            threads=kernels.cpu_threads, reserved=kernels.cpu_reserved_cores,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    bind = "|".join(",".join(map(str, place.processors)) for place in places)
    threads = min(place.threads for place in places)
    return dataclasses.replace(kernels, cpu_threads=threads, cpu_threads_bind=bind.strip("|") or "nobind")


def _devices(options: StackOptions, engines: Collection[str]) -> dict[str, Mapping[str, str]]:
    """Name of each engine → environment that shows it its own GPUs; empty if something else finds GPUs for its
    ranks."""
    parallel, named = options.engine.parallel, options.engine.parallel.distributed_executor_backend
    if named in _ELSEWHERE or options.ranks.by_ray or (len(engines) == 1 and named in (None, "auto")):
        return {}
    gpus = count_gpus() if len(engines) * parallel.num_local_ranks > 1 and options.engine.kernels.device != "cpu" else 0
    share = options.engine.cache.gpu_memory_utilization
    return dict(zip(engines, devices_of_engines(len(engines), parallel, gpus, os.environ, share), strict=True))


def _encoder_devices(options: StackOptions, layout: Layout) -> dict[str, Mapping[str, str]]:
    """Name of each encoder → environment that shows it its GPU."""
    if not layout.encoders or options.engine.kernels.device == "cpu":
        return {}
    taken = len(layout.engines) * options.engine.parallel.num_local_ranks
    found = devices_of_encoders(len(layout.encoders), taken, count_gpus(), os.environ)
    return dict(zip(layout.encoders, found, strict=True))


def _spec(name: str, command: str, *groups: Any, environment: Mapping[str, str] = MappingProxyType({})) -> ProcessSpec:
    arguments = [sys.executable, "-m", "quire", command]
    environment = {**_neutral_environment(), **environment}
    if command == "engine":
        environment = {**_TUNABLES, **environment}
    for group in groups:
        more_arguments, more_environment = to_arguments(group)
        arguments += more_arguments
        environment = {**environment, **more_environment}
    return ProcessSpec(name, arguments, environment, command, niceness=0 if command == "engine" else _NICENESS)


def _neutral_environment() -> dict[str, str]:
    """This process's environment without option variables: each service gets its own, and QUIRE_PORT does not apply to
    all."""
    groups = [*typing.get_type_hints(StackOptions).values(), GrpcServerOptions]
    options = {name for group in groups for field in fields_of(group) for name in field.environment_variables}
    options.add(f"{ENVIRONMENT_PREFIX}CONFIG")
    return {name: value for name, value in os.environ.items() if name not in options}
