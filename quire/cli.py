"""The `quire` command: `serve`, one sub-command per service, and the clients `chat`, `complete` and `workers`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

import click

import quire
from quire.client.command import chat, complete
from quire.errors import StartupError
from quire.options.command import OptionsCommand
from quire.options.engine import EngineOptions
from quire.options.gateway import GatewayOptions
from quire.options.log import LogOptions
from quire.options.model import ModelOptions
from quire.options.router import RouterOptions
from quire.options.serve import ServeOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.options.tokenizer import TokenizerOptions
from quire.options.workers import WorkersOptions
from quire.supervised import Stage, end_with_supervisor, report

GRPC_PORTS = {"router": 50051, "tokenizer": 50052, "engine": 50053}


def _main_of(module: str) -> Callable[..., None]:
    """Runs `main` of a service's module, loaded by name when it is needed: quire imports no service."""

    def run(**options: object) -> None:
        try:
            end_with_supervisor()
            importlib.import_module(module).main(**options)
        except StartupError as error:
            if not report(Stage.FAILED, message=str(error)):
                click.echo(f"error: {error}", err=True)
            sys.exit(1)

    return run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(quire.__version__, "-v", "--version", message="quire %(version)s")
def cli() -> None:
    """Quire serves large language models: an OpenAI API in front of a fleet of engine workers."""


_RPC = {"server": GrpcServerOptions, "security": RpcSecurityOptions, "log": LogOptions}

for command in (
    OptionsCommand(
        "serve",
        "Starts gateway, router, tokenizer and engines on this machine and serves MODEL.",
        {
            "serve": ServeOptions,
            "model": ModelOptions,
            "gateway": GatewayOptions,
            "tokenizer": TokenizerOptions,
            "router": RouterOptions,
            "engine": EngineOptions,
            "security": RpcSecurityOptions,
            "log": LogOptions,
        },
        _main_of("quire.serve.stack"),
        {"router_address": (), "tokenizer_address": ()},
    ),
    OptionsCommand(
        "gateway",
        "Starts the HTTP gateway alone.",
        {"gateway": GatewayOptions, "security": RpcSecurityOptions, "log": LogOptions},
        _main_of("gateway.main"),
    ),
    OptionsCommand(
        "tokenizer",
        "Starts the tokenizer service of MODEL alone.",
        {"model": ModelOptions, "tokenizer": TokenizerOptions, **_RPC},
        _main_of("tokenizer_svc.main"),
        {"port": GRPC_PORTS["tokenizer"]},
    ),
    OptionsCommand(
        "router",
        "Starts the router alone.",
        {"router": RouterOptions, **_RPC},
        _main_of("router.main"),
        {"port": GRPC_PORTS["router"]},
    ),
    OptionsCommand(
        "engine",
        "Starts one engine worker of MODEL alone.",
        {"model": ModelOptions, "engine": EngineOptions, **_RPC},
        _main_of("engine_svc.main"),
        {"port": GRPC_PORTS["engine"]},
    ),
    chat,
    complete,
    OptionsCommand(
        "workers",
        "Shows the workers of a running router, or why it placed a request where it did.",
        {"workers": WorkersOptions, "security": RpcSecurityOptions},
        _main_of("quire.client.workers"),
    ),
):
    cli.add_command(command)


def main() -> None:
    """Entry point of the `quire` script."""
    cli()
