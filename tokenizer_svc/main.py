"""The tokenizer service's entry point."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

import uvloop

from quire.errors import FailedPrecondition, StartupError
from quire.log import setup_logging
from quire.metrics import new_registry, serve_metrics
from quire.options.log import LogOptions
from quire.options.model import ModelOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.options.tokenizer import TokenizerOptions
from quire.options.tracing import TracingOptions
from quire.rpc.server import GrpcServer
from quire.structured.vocabulary import token_table
from quire.tokenizer.files import TokenizerFiles
from quire.tokenizer.modes import find_tokenizer
from quire.tracing.base import Tracer, open_tracer
from quire.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tokenizer_svc.constraint_compiler import ConstraintCompiler
from tokenizer_svc.deepseek_template import deepseek_templates
from tokenizer_svc.got_ocr_template import got_ocr_templates
from tokenizer_svc.jina_template import jina_templates
from tokenizer_svc.media import MediaPreparer
from tokenizer_svc.metrics import TokenizerMetrics
from tokenizer_svc.renderer import ChatRenderer
from tokenizer_svc.service import TokenizerServicer
from tokenizer_svc.whisper_template import whisper_templates

logger = logging.getLogger(__name__)

# Delay before processes are started ahead of requests: an engine starting beside them wants all cores to load.
_LATER_SECONDS = 3.0
_SERVICE = tokenizer_pb2.DESCRIPTOR.services_by_name["TokenizerService"].full_name


def main(
    model: ModelOptions,
    tokenizer: TokenizerOptions,
    server: GrpcServerOptions,
    security: RpcSecurityOptions,
    log: LogOptions,
    tracing: TracingOptions = TracingOptions(),
) -> None:
    """Serves until SIGTERM or SIGINT.

    Raises:
        StartupError: the tokenizer cannot be loaded, or the port is taken.
    """
    setup_logging("tokenizer", log)
    with open_tracer("tokenizer", tracing) as tracer:
        uvloop.run(_serve(model, tokenizer, server, security, tracer))


async def _serve(
    model: ModelOptions,
    options: TokenizerOptions,
    server: GrpcServerOptions,
    security: RpcSecurityOptions,
    tracer: Tracer | None,
) -> None:
    registry = new_registry()
    metrics = TokenizerMetrics(registry)
    grpc_server = GrpcServer("tokenizer", _SERVICE, server, security, registry, tracer=tracer)
    name = model.tokenizer_name
    place = find_tokenizer(model)
    files = place.read()
    renderer = ChatRenderer(
        choose_templates(files, options),
        files.special_tokens,
        timeout_seconds=options.chat_template_timeout_seconds,
        max_chars=options.max_prompt_chars,
        content_format=options.chat_template_content_format,
        conversations=str(files.conversations or "") if options.chat_template is None else "",
    )
    compiler = ConstraintCompiler(place, options.structured_outputs, why_unconstrained(files))
    media = MediaPreparer(
        Path(place.folder) if place.folder else None, options.images, files.media if files.conversations else None
    )
    servicer = TokenizerServicer(name, files, renderer, compiler, media, options, metrics)
    metrics.watch_streams(lambda: sum(session.num_streams for session in tuple(servicer.sessions)))
    tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(servicer, grpc_server.server)
    await grpc_server.start()
    serve_metrics(registry, server.metrics_host, server.metrics_port)
    await renderer.start()
    await media.start()
    grpc_server.heed_signals()
    await grpc_server.set_serving(True)
    preparing = asyncio.create_task(_prepare(compiler, media))
    logger.info("serving the tokenizer of %s on port %d", name, grpc_server.port)
    await grpc_server.serve_until_stopped(servicer.drain)
    preparing.cancel()
    await asyncio.gather(preparing, return_exceptions=True)
    await asyncio.gather(renderer.close(), compiler.close(), media.close())


async def _prepare(compiler: ConstraintCompiler, media: MediaPreparer) -> None:
    """Starts the processes for which first requests would wait, a moment after the service is ready."""
    await asyncio.sleep(_LATER_SECONDS)
    await compiler.prepare()
    await media.prepare_others()


def why_unconstrained(files: TokenizerFiles) -> FailedPrecondition | None:
    """The error that explains why outputs cannot be constrained with this tokenizer; None if they can. Irrelevant to
    models that do not generate."""
    try:
        token_table(files)
    except FailedPrecondition as error:
        return error
    return None


def choose_templates(files: TokenizerFiles, options: TokenizerOptions) -> Mapping[str, str]:
    """The model's chat templates, or the one given by --chat-template; the built-in one if there is none, or if the
    model is a reranker whose template only chats.

    Raises:
        StartupError: the option is neither a readable file nor a template.
    """
    chosen = options.chat_template
    if chosen is None:
        built_in = (whisper_templates, got_ocr_templates, deepseek_templates)
        own = jina_templates(files.folder) or files.chat_templates
        return own or next(filter(None, (find(files.folder) for find in built_in)), {})
    if "{" in chosen:
        return {"default": chosen}
    try:
        return {"default": Path(chosen).read_text(encoding="utf-8")}
    except (OSError, ValueError) as error:  # ValueError: not UTF-8 text
        raise StartupError(f"--chat-template {chosen}: no template can be read from it ({error}).") from error
