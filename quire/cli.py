"""The `quire` command: `serve`, `run-batch`, one subcommand per service, benchmarks, and the clients `chat`, `complete`
and `workers`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import click
from click.shell_completion import CompletionItem

import quire
from quire.collection import without_collection
from quire.errors import StartupError
from quire.options.command import OptionsCommand
from quire.process_end import run_to_end
from quire.supervised import Stage, end_with_supervisor, report

GRPC_PORTS = {"router": 50051, "tokenizer": 50052, "engine": 50053}


def _main_of(module: str) -> Callable[..., None]:
    """Returns a function that runs `main` of a service's module. The module is loaded by name when needed: quire
    imports no service."""

    def run(**options: object) -> None:
        try:
            end_with_supervisor()
            with without_collection():
                loaded = importlib.import_module(module)
            loaded.main(**options)
        except StartupError as error:
            if not report(Stage.FAILED, message=str(error)):
                click.echo(f"error: {error}", err=True)
            sys.exit(1)

    return run


def _command(name: str, text: str, groups: Mapping[str, str], *arguments: Any) -> click.Command:
    """Builds a command from option groups, importing only their modules: all of them would be a third of what a service
    without torch imports.

    Args:
        groups: keyword argument of the function to run → module and dataclass in quire.options.
        arguments: see OptionsCommand.
    """
    classes = {}
    for keyword, place in groups.items():
        module, _, options = place.rpartition(".")
        classes[keyword] = getattr(importlib.import_module(f"quire.options.{module}"), options)
    return OptionsCommand(name, text, classes, *arguments)


def _client_command(name: str, module: str = "quire.client.command") -> click.Command:
    """Builds a client's command; no service needs the modules that it imports."""
    command: click.Command = getattr(importlib.import_module(module), name)
    return command


def _of_operator(name: str) -> click.Command:
    """Builds a command that uses the admin port."""
    command: click.Command = importlib.import_module("quire.client.administration").COMMANDS[name]()
    return command


class _Commands(click.Group):
    """A group of commands, each built when it is first needed."""

    def __init__(self, makers: Mapping[str, Callable[[], click.Command]], default: str = "", **attributes: Any) -> None:
        """
        Args:
            default: the command to run when none is named.
        """
        super().__init__(**attributes)
        self._makers = {name: cache(maker) for name, maker in makers.items()}
        self._default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Prepends the default command when none is named."""
        named = args[:1] and args[0] in (*self._makers, *self.get_help_option_names(ctx))
        stands_alone = not args and ctx.resilient_parsing  # shell completion: any of the names may follow
        adds = self._default and not named and not stands_alone
        return super().parse_args(ctx, [self._default, *args] if adds else args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes to the commands' names, and to what may follow the default one."""
        found = super().shell_complete(ctx, incomplete)
        if (command := self.get_command(ctx, self._default)) is not None:
            own = command.make_context(self._default, [], ctx, resilient_parsing=True)
            found += command.shell_complete(own, incomplete)
        return found

    def list_commands(self, ctx: click.Context | None) -> list[str]:
        """The names of all commands."""
        return sorted(self._makers)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        """The command with this name; None if there is none."""
        return self._makers[cmd_name]() if cmd_name in self._makers else None


_RPC = {
    "server": "server.GrpcServerOptions", "security": "server.RpcSecurityOptions", "log": "log.LogOptions",
    "tracing": "tracing.TracingOptions",
}  # fmt: skip

_ENGINE = {"model": "model.ModelOptions", "engine": "engine.EngineOptions", "log": "log.LogOptions"}

_BENCHMARKS: Mapping[str, Callable[[], click.Command]] = MappingProxyType(
    {
        "latency": partial(
            _command,
            "latency",
            "Measures how long an engine of MODEL takes for one batch, without a server.",
            {"latency": "bench_engine.LatencyOptions", **_ENGINE},
            _main_of("engine_svc.benchmark.latency"),
            {"enable_prefix_caching": False},
        ),
        "throughput": partial(
            _command,
            "throughput",
            "Measures how fast an engine of MODEL answers many prompts at once, without a server.",
            {"throughput": "bench_engine.ThroughputOptions", "dataset": "dataset.DatasetOptions", **_ENGINE},
            _main_of("engine_svc.benchmark.throughput"),
        ),
        "serve": partial(
            _command,
            "serve",
            "Benchmarks a running server with an OpenAI API: Quire or any other.",
            {
                "server": "bench.BenchServerOptions",
                "traffic": "bench.BenchTrafficOptions",
                "dataset": "dataset.DatasetOptions",
                "sampling": "bench.BenchSamplingOptions",
                "result": "bench.BenchResultOptions",
            },
            _main_of("quire.bench.serve"),
        ),
    }
)

_WORKERS: Mapping[str, Callable[[], click.Command]] = MappingProxyType(
    {
        "list": partial(
            _command,
            "list",
            "Shows the workers of a running router, or why it placed a request where it did.",
            {"workers": "workers.WorkersOptions", "security": "server.RpcSecurityOptions"},
            _main_of("quire.client.workers"),
        ),
        **{name: partial(_of_operator, name) for name in ("drain", "undrain", "pause", "resume", "sleep", "wake")},
    }
)

_STACK = {
    "serve": "serve.ServeOptions", "model": "model.ModelOptions", "gateway": "gateway.GatewayOptions",
    "tokenizer": "tokenizer.TokenizerOptions", "router": "router.RouterOptions", "engine": "engine.EngineOptions",
    "security": "server.RpcSecurityOptions", "log": "log.LogOptions", "tracing": "tracing.TracingOptions",
}  # fmt: skip
_OF_THE_STACK: Mapping[str, object] = {"router_address": (), "tokenizer_address": ()}  # defaults: the stack's own

# Name → function that builds the command. Building hundreds of options takes a while, and a process needs those of one
# command.
COMMANDS: Mapping[str, Callable[[], click.Command]] = MappingProxyType(
    {
        "serve": partial(
            _command,
            "serve",
            "Starts gateway, router, tokenizer and engines on this machine and serves MODEL.",
            _STACK,
            _main_of("quire.serve.stack"),
            _OF_THE_STACK,
        ),
        "doctor": partial(
            _command,
            "doctor",
            "Checks the machine, MODEL and the options for problems, before `quire serve` starts. A few things, such "
            "as parser names, are checked only by the services at startup.",
            _STACK,
            _main_of("quire.doctor.run"),
            _OF_THE_STACK,
        ),
        "run-batch": partial(
            _command,
            "run-batch",
            "Answers a file of requests with MODEL, and exits.",
            {"batch": "batch.BatchOptions", **_STACK},
            _main_of("quire.batch.run"),
            _OF_THE_STACK,
        ),
        "gateway": partial(
            _command,
            "gateway",
            "Starts only the HTTP gateway.",
            {
                "gateway": "gateway.GatewayOptions",
                "security": "server.RpcSecurityOptions",
                "log": "log.LogOptions",
                "tracing": "tracing.TracingOptions",
            },
            _main_of("gateway.main"),
        ),
        "tokenizer": partial(
            _command,
            "tokenizer",
            "Starts only the tokenizer service of MODEL.",
            {"model": "model.ModelOptions", "tokenizer": "tokenizer.TokenizerOptions", **_RPC},
            _main_of("tokenizer_svc.main"),
            {"port": GRPC_PORTS["tokenizer"]},
        ),
        "router": partial(
            _command,
            "router",
            "Starts only the router.",
            {"router": "router.RouterOptions", **_RPC},
            _main_of("router.main"),
            {"port": GRPC_PORTS["router"]},
        ),
        "engine": partial(
            _command,
            "engine",
            "Starts only one engine worker of MODEL.",
            {"model": "model.ModelOptions", "engine": "engine.EngineOptions", **_RPC},
            _main_of("engine_svc.main"),
            {"port": GRPC_PORTS["engine"]},
        ),
        "save-sharded-state": partial(
            _command,
            "save-sharded-state",
            "Writes the weights of MODEL as each rank loads them, for --load-format sharded_state.",
            {
                "model": "model.ModelOptions",
                "form": "model_form.ModelFormOptions",
                "load": "load.LoadOptions",
                "parallel": "parallel.ParallelOptions",
                "save": "save.SaveOptions",
                "log": "log.LogOptions",
            },
            _main_of("engine_svc.loader.save"),
        ),
        "bench": partial(
            _Commands,
            _BENCHMARKS,
            name="bench",
            help="Benchmarks of servers and engines.",
            context_settings={"help_option_names": ["-h", "--help"]},
        ),
        "collect-env": partial(
            _command,
            "collect-env",
            "Prints what a bug report should say about this machine, without secrets.",
            {"collect_env": "collect_env.CollectEnvOptions"},
            _main_of("quire.environment.command"),
        ),
        "detect-watermark": partial(
            _command,
            "detect-watermark",
            "Tests whether a text was marked by a server of MODEL with --watermark-config.",
            {
                "detection": "detect_watermark.DetectWatermarkOptions",
                "model": "model.ModelOptions",
                "watermark": "watermark.WatermarkOptions",
            },
            _main_of("quire.detect_watermark"),
        ),
        "chat": partial(_client_command, "chat"),
        "complete": partial(_client_command, "complete"),
        "completion": partial(_client_command, "completion", "quire.client.completion"),
        "workers": partial(
            _Commands,
            _WORKERS,
            "list",
            name="workers",
            help="Shows workers (list, the default), or controls them.",
            context_settings={"help_option_names": ["-h", "--help"]},
        ),
    }
)


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Yields every runnable command with its name as typed, such as `bench serve`."""
    for name, make in COMMANDS.items():
        command = make()
        if not isinstance(command, _Commands):
            yield name, command
            continue
        for inner in command.list_commands(None):
            if found := command.get_command(None, inner):
                yield f"{name} {inner}", found


cli = click.version_option(quire.__version__, "-v", "--version", message="quire %(version)s")(
    _Commands(
        COMMANDS,
        name="quire",
        help="Quire serves large language models: an OpenAI API in front of a fleet of engine workers.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
)


def main() -> None:
    """Entry point of the `quire` script."""
    run_to_end(cli)
