"""The calls of the service."""

from __future__ import annotations

import asyncio
import hashlib
import io
import math
import time
import zipfile
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from gateway.answers.collecting import updates
from gateway.context import GatewayContext
from gateway.endpoints import completions
from gateway.endpoints.pooled import PoolingCall
from gateway.endpoints.pooled_inputs import inputs_of
from gateway.requests.caller import tenant_of
from gateway.services.administration import Administration, Outcomes
from gateway.vllm_grpc.answers import Answer
from gateway.vllm_grpc.calls import Calls
from gateway.vllm_grpc.facts import Facts
from gateway.vllm_grpc.requests import completion_of, embedding_of
from quire.errors import FailedPrecondition, InvalidRequest

# There may be several caches behind this server, and its own router knows what is in each of them. Other routers go by
# what they have sent here, as with a vLLM server that publishes no events.
LEFT_OUT = ("SubscribeKvEvents",)

_ADMINISTRATION_SECONDS = 60.0
_FILE_PART_BYTES = 2**20


class VllmEngineServicer(vllm_engine_pb2_grpc.VllmEngineServicer):
    """Implements the calls of vllm_engine.proto, apart from those in LEFT_OUT."""

    def __init__(self, calls: Calls, context: GatewayContext) -> None:
        self._context = context
        self._calls = calls
        self._facts = Facts(context)

    async def Generate(
        self, request: vllm_engine_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[vllm_engine_pb2.GenerateResponse]:
        """Continues from token ids or a text."""
        self._facts.last_request = time.time()
        with self._calls.admitted(context) as caller:
            generation = await completions.prepare(
                caller, completion_of(request), default_max_tokens=None,
                thinks=not request.sampling_params.grammar_from_first_token,
            )  # fmt: skip
            wants_text = bool(generation.detokenize.stop_strings)
            state = await self._context.pipeline.start(replace(generation, wants_text=wants_text))
            try:
                answer = Answer(self._context, state, generation.prompts[0].token_ids, streams=request.stream)
                async for update in updates(state):
                    for response in answer.take(update):
                        yield response
                if state.error:
                    raise state.error
                for response in answer.completions():
                    yield response
            finally:
                state.cancel()

    async def Embed(
        self, request: vllm_engine_pb2.EmbedRequest, context: grpc.aio.ServicerContext
    ) -> vllm_engine_pb2.EmbedResponse:
        """Embeds token ids."""
        from gateway.answers import vectors  # late: it needs numpy, a third of a gateway's start

        self._facts.last_request = time.time()
        with self._calls.admitted(context) as caller:
            body = embedding_of(request)
            call = PoolingCall.of(caller, body)
            call.require("embed")
            (pooled,) = await call.run(await inputs_of(call, body), "embed")
        values = vectors.lists_of(pooled)
        return vllm_engine_pb2.EmbedResponse(
            embedding=values, prompt_tokens=pooled.num_tokens, embedding_dim=len(values)
        )

    async def HealthCheck(
        self, request: vllm_engine_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> vllm_engine_pb2.HealthCheckResponse:
        """Tells what is missing, if anything is. Needs no key."""
        missing = ", ".join(self._context.missing)
        return vllm_engine_pb2.HealthCheckResponse(healthy=not missing, message=missing or "ready")

    async def Abort(
        self, request: vllm_engine_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> vllm_engine_pb2.AbortResponse:
        """Aborts requests of the same key; unknown ids are ignored."""
        caller = self._calls.request_of(context)
        self._context.pipeline.abort(set(request.request_ids), tenant_of(caller))
        return vllm_engine_pb2.AbortResponse()

    async def GetModelInfo(
        self, request: vllm_engine_pb2.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> vllm_engine_pb2.GetModelInfoResponse:
        """See Facts."""
        self._calls.request_of(context)
        return await self._facts.model()

    async def GetServerInfo(
        self, request: vllm_engine_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> vllm_engine_pb2.GetServerInfoResponse:
        """See Facts."""
        self._calls.request_of(context)
        return self._facts.server()

    async def GetLoads(
        self, request: vllm_engine_pb2.GetLoadsRequest, context: grpc.aio.ServicerContext
    ) -> vllm_engine_pb2.GetLoadsResponse:
        """See Facts."""
        self._calls.request_of(context)
        return self._facts.loads()

    async def GetTokenizer(
        self, request: common_pb2.GetTokenizerRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[common_pb2.GetTokenizerChunk]:
        """Sends a ZIP archive of the tokenizer's files; the last part has its checksum."""
        self._calls.request_of(context)
        self._context.require_tokenizer("GetTokenizer")
        tokenizer = self._context.tokenizer
        files = {
            "tokenizer.json": await tokenizer.tokenizer_json(), "tokenizer_config.json": await tokenizer.config_json()
        }  # fmt: skip
        data, checksum = await asyncio.to_thread(_archive, files)
        for start in range(0, len(data), _FILE_PART_BYTES):
            is_last = start + _FILE_PART_BYTES >= len(data)
            yield common_pb2.GetTokenizerChunk(
                data=data[start : start + _FILE_PART_BYTES], sha256=checksum if is_last else ""
            )

    async def FlushCache(
        self, request: common_pb2.FlushCacheRequest, context: grpc.aio.ServicerContext
    ) -> common_pb2.FlushCacheResponse:
        """Makes later requests find nothing computed so far; running ones keep their blocks, so there is no waiting."""
        self._require_operator(context)
        if not (math.isfinite(request.timeout_s) and request.timeout_s >= 0):
            raise InvalidRequest(f"timeout_s is {request.timeout_s}; it must be 0 or more.", parameter="timeout_s")
        failure = _failure(await self._administration.reset_prefix_cache(preempts=False))
        return common_pb2.FlushCacheResponse(success=not failure, message=failure or "The prefix cache is empty.")

    async def StartProfile(
        self, request: common_pb2.StartProfileRequest, context: grpc.aio.ServicerContext
    ) -> common_pb2.ProfileResponse:
        """Starts profiling on all workers, as they were started to."""
        self._require_operator(context)
        if given := [field.name for field, _ in request.ListFields()]:
            raise InvalidRequest(
                f"{', '.join(given)} cannot be set here: what is profiled follows from the engines' --profiler-config. "
                "Leave everything out.",
                parameter=given[0],
            )
        return await self._profile(wanted=True)

    async def StopProfile(
        self, request: common_pb2.StopProfileRequest, context: grpc.aio.ServicerContext
    ) -> common_pb2.ProfileResponse:
        """Ends it; the engines write their profiles."""
        self._require_operator(context)
        return await self._profile(wanted=False)

    async def _profile(self, *, wanted: bool) -> common_pb2.ProfileResponse:
        failure = _failure(await self._administration.profile(wanted=wanted))
        return common_pb2.ProfileResponse(success=not failure, message=failure or "done")

    def _require_operator(self, context: grpc.aio.ServicerContext) -> None:
        """
        Raises:
            Unauthenticated: the call needs a key, and has none that is known.
            FailedPrecondition: callers are not operators here.
        """
        self._calls.request_of(context)
        if not self._context.options.server_dev_mode:
            raise FailedPrecondition(
                "Callers may do this only if the server was started with --server-dev-mode; operators use --admin-port."
            )

    @property
    def _administration(self) -> Administration:
        return Administration(self._context.fleet, (), _ADMINISTRATION_SECONDS)


def _archive(files: dict[str, bytes]) -> tuple[bytes, str]:
    """The archive, and its checksum: both take long for large vocabularies."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        for name, data in files.items():
            written.writestr(name, data)
    data = archive.getvalue()
    return data, hashlib.sha256(data).hexdigest()


def _failure(outcomes: Outcomes) -> str:
    """What went wrong on the workers; empty if nothing did."""
    return "; ".join(error.message for error in outcomes.errors)
