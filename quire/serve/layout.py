"""The composition of the local stack: which processes, with which options, on which addresses."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import StartupError
from quire.model_folder import DEMO_MODEL
from quire.options.base import values_of
from quire.options.ec_transfer import CONSUMER
from quire.options.engine import EngineOptions
from quire.options.gateway import GatewayOptions
from quire.options.kv_transfer import GRPC
from quire.options.log import LogOptions
from quire.options.model import ModelOptions
from quire.options.multimodal import ENCODER_FLAG
from quire.options.reasoning import PARSERS_OF_CALLS_TOO
from quire.options.router import RouterOptions
from quire.options.serve import ServeOptions
from quire.options.server import RpcSecurityOptions
from quire.options.tokenizer import TokenizerOptions
from quire.options.tokenizer_init import SKIP_FLAG
from quire.options.tools import HARMONY_CALLS
from quire.options.tracing import TracingOptions
from quire.rpc.discovery import join_address
from quire.serve.data_parallel import LocalRanks, find_local_ranks, own_address_at
from quire.serve.ports import LOOPBACK, HeldPorts

# Options that do not concern only the services behind the gateway.
_OF_THE_STACK = ("startup_timeout_seconds", "api_server_count", "skip_tokenizer_init", "allow_runtime_lora_updating")


@dataclass(frozen=True)
class StackOptions:
    """All options that the user chose."""

    serve: ServeOptions
    model: ModelOptions
    gateway: GatewayOptions
    tokenizer: TokenizerOptions
    router: RouterOptions
    engine: EngineOptions
    security: RpcSecurityOptions
    log: LogOptions
    tracing: TracingOptions = TracingOptions()

    @property
    def ranks(self) -> LocalRanks:
        """The data-parallel ranks of this machine.

        Raises:
            StartupError: options contradict each other.
        """
        return find_local_ranks(self.engine.parallel, self.serve.data_parallel)


@dataclass(frozen=True)
class Layout:
    """The addresses of the services, as host:port.

    Attributes:
        router, tokenizer: those that the user named, or one on the loopback address; no tokenizer if none is wanted.
        own: name of a process of this stack → address it listens on, for those that speak gRPC.
        metrics: name of such a process → port of its metrics.
        engines: name of an engine of this stack → its data-parallel rank; empty if the user named a router, which has
            its own engines.
        encoders: names of the workers that only encode for them.
        ranks: the ranks that this machine runs, and where the others are.
        meeting_port: port at which the ranks of a model with experts meet; 0 without other ranks.
        gateways: names of the processes that answer HTTP.
        shared_port_folder, uds_descriptor: see GatewayOptions.
    """

    router: tuple[str, ...]
    tokenizer: tuple[str, ...]
    own: dict[str, str]
    metrics: dict[str, int]
    engines: Mapping[str, int]
    encoders: tuple[str, ...]
    ranks: LocalRanks
    meeting_port: int
    gateways: tuple[str, ...]
    shared_port_folder: str
    uds_descriptor: int | None

    @property
    def workers(self) -> list[str]:
        """Addresses of the stack's own workers."""
        return [self.own[name] for name in (*self.engines, *self.encoders)]


def choose_layout(options: StackOptions, ports: HeldPorts) -> Layout:
    """Decides which services this stack has, and gives them free ports.

    Raises:
        StartupError: a port that the user named is taken, an option is for a service that is not started, options of
            adapters or of data parallelism are inconsistent, or an adapter has the name of an alias.
    """
    ranks = options.ranks
    _check_used("--router-address", options.gateway.router_address, options.serve, options.router, options.engine)
    _check_used("--tokenizer-address", options.gateway.tokenizer_address, options.tokenizer)
    if options.gateway.skip_tokenizer_init:
        _check_no_tokenizer(options)
    if not options.gateway.router_address:
        options.engine.lora.check()
        _check_adapter_names(options)
    _check_encoders(options, ranks)
    engines = {} if options.gateway.router_address else _engine_names(ranks)
    encoders = _names("encoder", options.serve.encoder_workers)
    own = _engine_addresses(engines, options, ports) | _encoder_addresses(encoders, ranks, ports)
    if not (options.gateway.router_address or ranks.headless):
        own["router"] = _router_address(options, ranks, ports)
    if not (options.gateway.tokenizer_address or options.gateway.skip_tokenizer_init or ranks.headless):
        own["tokenizer"] = f"{LOOPBACK}:{ports.hold_free(1)[0]}"
    return Layout(
        (own["router"],) if "router" in own else options.gateway.router_address or (ranks.router,),
        (own["tokenizer"],) if "tokenizer" in own else options.gateway.tokenizer_address,
        own,
        dict(zip(own, ports.hold_free(len(own)), strict=True)),
        engines,
        encoders,
        ranks,
        _meeting_port(options, ranks, ports),
        () if ranks.headless else _names("gateway", options.serve.api_server_count),
        ports.make_folder() if options.serve.api_server_count > 1 else "",
        ports.uds_descriptor,
    )


def _names(service: str, count: int) -> tuple[str, ...]:
    return (service,) if count == 1 else tuple(f"{service}-{index}" for index in range(count))


def _engine_names(ranks: LocalRanks) -> Mapping[str, int]:
    return {"engine": 0} if ranks.size == 1 else {f"engine-{rank}": rank for rank in ranks.ranks}


def _engine_addresses(names: Collection[str], options: StackOptions, ports: HeldPorts) -> dict[str, str]:
    """Engine name → address to listen on; on a further node, one that the first node's router can reach."""
    ranks, host = options.ranks, LOOPBACK
    if ranks.registers_elsewhere:
        host = options.engine.parallel.executor.host_ip or own_address_at(ranks.address, ranks.rpc_port)
    held = ports.hold_free(len(names), host)
    return {name: join_address(host, port) for name, port in zip(names, held, strict=True)}


def _encoder_addresses(names: Collection[str], ranks: LocalRanks, ports: HeldPorts) -> dict[str, str]:
    """Encoder name → address to listen on; on a first node, one that the engines of further nodes can reach."""
    host = ranks.address if ranks.has_members_elsewhere else LOOPBACK
    held = ports.hold_free(len(names), host)
    return {name: join_address(host, port) for name, port in zip(names, held, strict=True)}


def _router_address(options: StackOptions, ranks: LocalRanks, ports: HeldPorts) -> str:
    """Address that the router listens on; on a first node, one that further nodes can reach."""
    host = ranks.address if ranks.has_members_elsewhere else LOOPBACK
    port = ranks.rpc_port if ranks.has_members_elsewhere else options.serve.data_parallel.data_parallel_rpc_port
    if not port:
        return join_address(host, ports.hold_free(1)[0])
    ports.hold(host, port, "--data-parallel-rpc-port")
    return join_address(host, port)


def _meeting_port(options: StackOptions, ranks: LocalRanks, ports: HeldPorts) -> int:
    if chosen := options.engine.parallel.data_parallel_master_port:
        return chosen
    if ranks.elsewhere:
        return ranks.rpc_port + 1
    return ports.hold_free(1)[0] if ranks.size > 1 else 0


def _check_encoders(options: StackOptions, ranks: LocalRanks) -> None:
    """
    Raises:
        StartupError: the stack would have no worker that generates, or encoders that its router does not know.
    """
    elsewhere = f"`quire engine MODEL {ENCODER_FLAG} --register-with ROUTER`"
    if options.engine.images.mm_encoder_only:
        raise StartupError(
            f"{ENCODER_FLAG}: a stack needs workers that generate. Use --encoder-workers N for workers beside these "
            f"that only encode, or {elsewhere} for one beside those of another router."
        )
    if options.serve.encoder_workers and ranks.headless:
        raise StartupError(f"--encoder-workers is for the node with the router. On other nodes, use {elsewhere}.")


def _check_used(flag: str, addresses: Sequence[str], *groups: Any) -> None:
    """Checks that no option would be without effect because its services run elsewhere.

    Raises:
        StartupError: some options would be.
    """
    changed = [field.flag for group in groups for field, value in values_of(group)
               if value != field.default and field.name not in _OF_THE_STACK]  # fmt: skip
    if addresses and changed:
        raise StartupError(
            f"{flag} names services that already run with their own options: {', '.join(changed)} would have no "
            "effect. Leave them out."
        )


def _check_adapter_names(options: StackOptions) -> None:
    """Checks that no adapter has the name of an alias, which requests would reach instead of it.

    Raises:
        StartupError: one has.
    """
    aliases = {text.partition("=")[0]: text for text in options.router.model_alias}
    for module in options.engine.lora.modules():
        if module.name in aliases:
            raise StartupError(
                f"--lora-modules has an adapter named {module.name!r}, which is also an alias (--model-alias "
                f"{aliases[module.name]}). Give one of them another name."
            )


def _check_no_tokenizer(options: StackOptions) -> None:
    """Checks that no tokenizer option is set.

    Raises:
        StartupError: some are, and would have no effect.
    """
    named = {
        "--tokenizer": options.model.tokenizer, "--tokenizer-revision": options.model.tokenizer_revision,
        "--tokenizer-address": options.gateway.tokenizer_address,
    }  # fmt: skip
    unused = [field.flag for field, value in values_of(options.tokenizer) if value != field.default]
    unused += [flag for flag, value in named.items() if value]
    if unused:
        raise StartupError(
            f"With {SKIP_FLAG} there is no tokenizer: {', '.join(unused)} would have no effect. Leave them out."
        )


def with_derived(options: StackOptions) -> StackOptions:
    """Fills in the options that follow from others.

    Raises:
        StartupError: options are inconsistent; or others need the same token, and none is given.
    """
    changes: dict[str, Any] = {"gateway": _with_parsers(options), "engine": _with_encoders(options)}
    if options.gateway.needs_key and not options.security.grpc_token:
        ranks, is_shared = options.ranks, options.gateway.enable_kv_transfer_params
        if ranks.registers_elsewhere or ranks.has_members_elsewhere or is_shared:
            raise StartupError(
                "With API keys, the services require a token from each other, which all nodes must share, and all "
                "servers with --enable-kv-transfer-params: set the same --grpc-token (QUIRE_GRPC_TOKEN) on each."
            )
        # The API requires a key, so the gRPC ports behind it must not be open to every user of this machine.
        changes["security"] = dataclasses.replace(options.security, grpc_token=secrets.token_urlsafe(32))
    derived = dataclasses.replace(options, **changes)
    derived.gateway.check()
    if options.gateway.grpc and options.serve.api_server_count > 1:
        raise StartupError("--api-server-count is for HTTP: with --grpc there is one gateway. Leave it out.")
    derived.tracing.check()
    return derived


def _with_encoders(options: StackOptions) -> EngineOptions:
    """The options of the engines, which ask the stack's encoders if there are any."""
    if not options.serve.encoder_workers:
        return options.engine
    asking = {"ec_connector": GRPC, "ec_role": CONSUMER} | options.engine.images.ec_transfer_config
    images = dataclasses.replace(options.engine.images, ec_transfer_config=asking)
    return dataclasses.replace(options.engine, images=images)


def _with_parsers(options: StackOptions) -> GatewayOptions:
    """The gateway's options, with the parsers that follow from others, or from the bundled model, unless the user chose
    others."""
    reasoning, tools = options.gateway.reasoning, options.gateway.tools
    if tools.tool_call_parser == HARMONY_CALLS and not reasoning.parser:
        reasoning = dataclasses.replace(reasoning, reasoning_parser=PARSERS_OF_CALLS_TOO[0])
    if options.model.model == DEMO_MODEL and not options.gateway.skip_tokenizer_init:
        if not reasoning.parser and reasoning.enable_reasoning is not False:
            reasoning = dataclasses.replace(reasoning, reasoning_parser="qwen3")
        if tools.tool_call_parser is None:
            tools = dataclasses.replace(tools, tool_call_parser="hermes", enable_auto_tool_choice=True)
    return dataclasses.replace(options.gateway, reasoning=reasoning, tools=tools)
