"""What the service tells about the model, the server and its load."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from smg_grpc_proto import vllm_engine_pb2

import quire
from gateway.context import GatewayContext
from gateway.metrics.fleet import used_share, waiting_requests
from quire.errors import Unavailable
from quire.runners import GENERATE
from quire.sampling import MODEL_DEFAULTS

if TYPE_CHECKING:
    from quire.v1 import common_pb2

_RATE_SECONDS = 1.0  # a rate of tokens is of at least this long


class Facts:
    """Answers what callers ask about the server. A fleet of several workers looks like one that has all their room."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._start = time.monotonic()
        self._counted = (self._start, 0)  # when the generated tokens were last counted, and how many there were
        self._tokens_per_second = 0.0
        self.last_request = 0.0  # Unix time

    def _infos(self) -> Sequence[common_pb2.ModelInfo]:
        """Models of all reachable workers.

        Raises:
            Unavailable: there are none.
        """
        if not (heard := self._context.fleet.heard):
            raise Unavailable("Loading model: no engine worker is ready yet; try again in a moment.")
        return [worker.model_info for worker in heard]

    async def model(self) -> vllm_engine_pb2.GetModelInfoResponse:
        """
        Raises:
            Unavailable: no worker can be reached.
        """
        info = self._infos()[0]
        told = vllm_engine_pb2.GetModelInfoResponse(
            model_path=info.model,
            is_generation=(info.runner or GENERATE) == GENERATE,
            max_context_length=info.max_model_len,
            max_req_input_len=info.max_model_len,
            vocab_size=info.vocab_size,
            served_model_name=info.served_model_names[0],
            architectures=[info.architecture],
            model_type=info.model_type,
            eos_token_ids=info.eos_token_ids,
            default_sampling_params_json=_defaults(info.default_sampling),
        )
        if not self._context.options.skip_tokenizer_init:
            tokenizer = await self._context.tokenizer.info()
            told.tokenizer_path, told.bos_token_id = tokenizer.tokenizer, tokenizer.bos_token_id
        return told

    def server(self) -> vllm_engine_pb2.GetServerInfoResponse:
        """
        Raises:
            Unavailable: no worker can be reached.
        """
        context, infos = self._context, self._infos()
        parser = context.options.reasoning.parser if context.reasoning else ""
        return vllm_engine_pb2.GetServerInfoResponse(
            active_requests=context.statistics.num_live,
            is_paused=all(worker.load.status.is_paused for worker in context.fleet.heard),
            last_receive_timestamp=self.last_request,
            uptime_seconds=time.monotonic() - self._start,
            server_type="vllm-grpc",  # the name of this service; clients may expect no other
            kv_connector=infos[0].kv_connector,
            kv_role=infos[0].kv_role,
            data_parallel_size=1,
            block_size=infos[0].block_size,
            attention_backend=infos[0].attention_backend,
            model_dtype=infos[0].dtype,
            max_num_seqs=sum(info.max_num_seqs for info in infos),
            engine_reasoning_parser=parser or "",
            constrained_decoding_start="after_reasoning" if parser else "first_token",
        )

    def loads(self) -> vllm_engine_pb2.GetLoadsResponse:
        """The load of all reachable workers together, with what waits for them in routers; zeros if there are none."""
        fleet = self._context.fleet
        workers = fleet.heard
        loads = [worker.load for worker in workers]
        running = sum(load.running_sequences for load in loads)
        waiting = round(sum(waiting_requests(fleet, self._context.pipeline.router_streams.queued).values()))
        tokens = sum(worker.model_info.num_kv_blocks * worker.model_info.block_size for worker in workers)
        counters = fleet.counters.values()
        queried = sum(counter.prefix_cache_queries for counter in counters)
        usage = used_share(loads)
        load = vllm_engine_pb2.SchedulerLoad(
            num_running_reqs=running,
            num_waiting_reqs=waiting,
            num_total_reqs=running + waiting,
            num_used_tokens=round(usage * tokens),
            max_total_num_tokens=tokens,
            token_usage=usage,
            utilization=usage,
            gen_throughput=self._rate(sum(counter.generation_tokens for counter in counters)),
            cache_hit_rate=sum(counter.prefix_cache_hits for counter in counters) / queried if queried else 0.0,
            max_running_requests=sum(worker.model_info.max_num_seqs for worker in workers),
            num_waiting_uncached_tokens=sum(load.waiting_prefill_tokens for load in loads),
        )
        return vllm_engine_pb2.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(), version=quire.__version__, dp_rank_count=1, loads=[load]
        )

    def _rate(self, generated: int) -> float:
        """Tokens per second since the last time that was asked for."""
        now, (then, before) = time.monotonic(), self._counted
        if now - then >= _RATE_SECONDS:
            self._tokens_per_second = max(0, generated - before) / (now - then)
            self._counted = now, generated
        return self._tokens_per_second


def _defaults(sampling: common_pb2.SamplingParams) -> str:
    """The model's sampling defaults as JSON, for callers to apply; empty if it has none."""
    found = {field.name: value for field, value in sampling.ListFields() if field.name in MODEL_DEFAULTS}
    return json.dumps(found) if found else ""
