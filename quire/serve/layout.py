"""What the local stack consists of: which processes, with which options, where."""

from __future__ import annotations

import dataclasses
import os
import secrets
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from quire.errors import StartupError
from quire.model_folder import DEMO_MODEL
from quire.options.base import ENVIRONMENT_PREFIX, fields_of, to_arguments, values_of
from quire.options.engine import EngineOptions
from quire.options.gateway import GatewayOptions
from quire.options.log import LogOptions
from quire.options.model import ModelOptions
from quire.options.router import RouterOptions
from quire.options.serve import ServeOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.options.tokenizer import TokenizerOptions
from quire.options.tokenizer_init import SKIP_FLAG
from quire.processors import place_rank, read_machine
from quire.serve.devices import count_gpus, devices_of_engines
from quire.serve.ports import HeldPorts
from quire.serve.supervisor import ProcessSpec

# Of the services beside an engine. One that takes a core from a thread of the engine's makes the other threads wait for
# what that one has in hand; in between the engine leaves the cores idle often enough.
_NICENESS = 5
# Not of the services behind the gateway alone.
_OF_THE_STACK = ("startup_timeout_seconds", "skip_tokenizer_init", "allow_runtime_lora_updating")


@dataclass(frozen=True)
class StackOptions:
    """Everything the user chose."""

    serve: ServeOptions
    model: ModelOptions
    gateway: GatewayOptions
    tokenizer: TokenizerOptions
    router: RouterOptions
    engine: EngineOptions
    security: RpcSecurityOptions
    log: LogOptions


@dataclass(frozen=True)
class Layout:
    """Where the services are, as host:port.

    Attributes:
        router, tokenizer: those that the user named, or one on the loopback address; no tokenizer where none is wanted.
        own: name of a process of this stack → where it listens, for those that speak gRPC.
        metrics: name of such a process → port of its metrics.
    """

    router: tuple[str, ...]
    tokenizer: tuple[str, ...]
    own: dict[str, str]
    metrics: dict[str, int]

    @property
    def engines(self) -> tuple[str, ...]:
        """Names of the engines of this stack; none where the user named a router, which has its own."""
        return tuple(name for name in self.own if name.startswith("engine"))


def choose_layout(options: StackOptions, ports: HeldPorts) -> Layout:
    """Which services this stack has, on free ports.

    Raises:
        StartupError: a port that the user named is taken, an option is for a service that is not started, or options
            of adapters do not go together.
    """
    _check_used("--router-address", options.gateway.router_address, options.serve, options.router, options.engine)
    _check_used("--tokenizer-address", options.gateway.tokenizer_address, options.tokenizer)
    if options.gateway.skip_tokenizer_init:
        _check_no_tokenizer(options)
    if not options.gateway.router_address:
        options.engine.lora.check()
    names = [] if options.gateway.router_address else [*_engine_names(options.serve.engines), "router"]
    has_tokenizer = not (options.gateway.tokenizer_address or options.gateway.skip_tokenizer_init)
    names += ["tokenizer"] if has_tokenizer else []
    own = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports.hold_free(len(names)), strict=True)}
    if options.serve.router_port and "router" in own:
        ports.hold("127.0.0.1", options.serve.router_port, "--router-port")
        own["router"] = f"127.0.0.1:{options.serve.router_port}"
    return Layout(
        options.gateway.router_address or (own["router"],),
        (own["tokenizer"],) if has_tokenizer else options.gateway.tokenizer_address,
        own,
        dict(zip(names, ports.hold_free(len(names)), strict=True)),
    )


def _check_used(flag: str, addresses: Sequence[str], *groups: Any) -> None:
    """
    Raises:
        StartupError: the services of these options run elsewhere, so that those that are set have no effect.
    """
    changed = [field.flag for group in groups for field, value in values_of(group)
               if value != field.default and field.name not in _OF_THE_STACK]  # fmt: skip
    if addresses and changed:
        raise StartupError(
            f"{flag} names services that run already, with options of their own: {', '.join(changed)} would have no "
            "effect. Leave it out."
        )


def _check_no_tokenizer(options: StackOptions) -> None:
    """
    Raises:
        StartupError: options of the tokenizer are set, so that they have no effect.
    """
    named = {
        "--tokenizer": options.model.tokenizer, "--tokenizer-revision": options.model.tokenizer_revision,
        "--tokenizer-address": options.gateway.tokenizer_address,
    }  # fmt: skip
    unused = [field.flag for field, value in values_of(options.tokenizer) if value != field.default]
    unused += [flag for flag, value in named.items() if value]
    if unused:
        raise StartupError(
            f"With {SKIP_FLAG} there is no tokenizer: {', '.join(unused)} would have no effect. Leave it out."
        )


def _engine_names(count: int) -> list[str]:
    return ["engine"] if count == 1 else [f"engine-{index}" for index in range(count)]


def with_derived(options: StackOptions) -> StackOptions:
    """The options with what follows from them filled in."""
    changes: dict[str, Any] = {"gateway": _with_parsers(options)}
    if options.gateway.api_key and not options.security.grpc_token:
        # The API asks for a key, so the gRPC ports behind it must not be open to every user of this machine.
        changes["security"] = dataclasses.replace(options.security, grpc_token=secrets.token_urlsafe(32))
    return dataclasses.replace(options, **changes)


def _with_parsers(options: StackOptions) -> GatewayOptions:
    """The gateway's options, which know the formats of the model in the box unless the user says otherwise."""
    reasoning, tools = options.gateway.reasoning, options.gateway.tools
    if options.model.model == DEMO_MODEL:
        if not reasoning.parser and reasoning.enable_reasoning is None:
            reasoning = dataclasses.replace(reasoning, reasoning_parser="qwen3")
        if tools.tool_call_parser is None:
            tools = dataclasses.replace(tools, tool_call_parser="hermes", enable_auto_tool_choice=True)
    return dataclasses.replace(options.gateway, reasoning=reasoning, tools=tools)


def process_specs(options: StackOptions, layout: Layout) -> list[ProcessSpec]:
    """The processes of the stack, engines first; their options are the user's, with the addresses filled in.

    Raises:
        StartupError: there are GPUs, but not for each engine.
    """
    workers = (*options.router.workers, *(layout.own[name] for name in layout.engines))
    commands: dict[str, Sequence[Any]] = {
        **{
            name: ("engine", options.model, _engine_options(options.engine, index, len(layout.engines)))
            for index, name in enumerate(layout.engines)
        },
        "router": ("router", dataclasses.replace(options.router, workers=workers)),
        "tokenizer": ("tokenizer", options.model, options.tokenizer),
    }
    gateway = dataclasses.replace(options.gateway, router_address=layout.router, tokenizer_address=layout.tokenizer)
    shared = (options.security, options.log)
    drain = options.gateway.drain_timeout_seconds
    devices = _devices(options, layout.engines)
    specs = []
    for name, address in layout.own.items():
        command, *groups = commands[name]
        server = GrpcServerOptions(
            port=int(address.rpartition(":")[2]), metrics_port=layout.metrics[name], drain_timeout_seconds=drain
        )
        specs.append(_spec(name, command, *groups, server, *shared, environment=devices.get(name, {})))
    return [*specs, _spec("gateway", "gateway", gateway, *shared)]


def _engine_options(options: EngineOptions, index: int, engines: int) -> EngineOptions:
    """Those of one of the engines, whose ranks share the processors with those of the others.

    Raises:
        StartupError: see place_rank.
    """
    if engines == 1:
        return options
    kernels, ranks, machine = options.kernels, options.parallel.tensor_parallel_size, read_machine()
    places = [
        place_rank(
            kernels.cpu_threads_bind, machine, index * ranks + rank, engines * ranks,
            threads=kernels.cpu_threads, reserved=kernels.cpu_reserved_cores,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    bind = "|".join(",".join(map(str, place.processors)) for place in places)
    threads = min(place.threads for place in places)
    own = dataclasses.replace(kernels, cpu_threads=threads, cpu_threads_bind=bind.strip("|") or "nobind")
    return dataclasses.replace(options, kernels=own)


def _devices(options: StackOptions, engines: Sequence[str]) -> dict[str, Mapping[str, str]]:
    """Name of each engine → environment that shows it its own GPUs."""
    gpus = count_gpus() if len(engines) > 1 and options.engine.kernels.device != "cpu" else 0
    ranks = options.engine.parallel.tensor_parallel_size
    return dict(zip(engines, devices_of_engines(len(engines), ranks, gpus, os.environ), strict=True))


def _spec(name: str, command: str, *groups: Any, environment: Mapping[str, str] = MappingProxyType({})) -> ProcessSpec:
    arguments = [sys.executable, "-m", "quire", command]
    environment = {**_neutral_environment(), **environment}
    for group in groups:
        more_arguments, more_environment = to_arguments(group)
        arguments += more_arguments
        environment = {**environment, **more_environment}
    is_engine = command == "engine"
    return ProcessSpec(name, arguments, environment, has_peers=is_engine, niceness=0 if is_engine else _NICENESS)


def _neutral_environment() -> dict[str, str]:
    """This process's environment without options: each service gets its own, and QUIRE_PORT is not every service's."""
    groups = [*typing.get_type_hints(StackOptions).values(), GrpcServerOptions]
    options = {name for group in groups for field in fields_of(group) for name in field.environment_variables}
    options.add(f"{ENVIRONMENT_PREFIX}CONFIG")
    return {name: value for name, value in os.environ.items() if name not in options}
