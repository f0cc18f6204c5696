"""A whole engine in this process: real executor, real scheduler, no wire."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_svc.core.engine import Engine, EngineFacts
from engine_svc.executor.base import Executor, create_executor
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.kv_cache.sizing import size_kv_cache
from engine_svc.plan import CacheSize, KvCacheSpec, PositionLogprobs
from engine_svc.requests.outputs import FinishReason, SequenceDelta, Usage
from engine_svc.requests.request import GenerationRequest
from engine_svc.scheduler.drafter import Drafter
from engine_svc.structured.grammars import Grammars
from quire.errors import QuireError
from quire.options.model import ModelOptions
from quire.sampling import SamplingParameters
from tests.support.engine_options import engine_options
from tests.support.tiny_models import VOCAB_SIZE

GREEDY = SamplingParameters(temperature=0.0, max_tokens=64, ignore_eos=True)
_LOOK_SECONDS = 0.001


@dataclass
class Output:
    """The output of one choice."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    routed_experts: list[bytes] = field(default_factory=list)
    sampling_masks: list[list[int]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    usage: Usage | None = None


@contextmanager
def running_engine(
    folder: Path,
    num_blocks: int = 256,
    num_host_blocks: int = 0,
    eos_token_ids: tuple[int, ...] = (),
    executor: Executor | None = None,
    connector: KvConnector | None = None,
    num_snapshots: int = 8,
    num_host_snapshots: int = 0,
    clock: Callable[[], float] = time.monotonic,
    grammars: Grammars | None = None,
    drafter: Drafter | None = None,
    **options: Any,
) -> Iterator[Engine]:
    """An engine in float32, unless the options say otherwise; checks at its end that nothing leaked."""
    given = {"dtype": "float32", "use_tqdm_on_load": False, "num_gpu_blocks_override": num_blocks} | options
    chosen = engine_options(**given)
    executor = executor or create_executor(chosen.parallel)
    try:
        spec = executor.load(ModelOptions(model=str(folder)), chosen)
        size = size_kv_cache(spec, chosen)
        num_snapshots = min(num_snapshots, size.num_snapshots)
        executor.allocate(CacheSize(num_blocks, num_host_blocks, num_snapshots, num_host_snapshots))
        engine = Engine(
            executor,
            chosen,
            EngineFacts(
                num_blocks=num_blocks, num_host_blocks=num_host_blocks, block_size=spec.block_size,
                windows=spec.windows, num_stages=spec.num_stages, has_states=spec.state_bytes > 0,
                num_snapshots=num_snapshots, snapshot_tokens=size.snapshot_tokens, max_model_len=size.max_model_len,
                max_num_batched_tokens=spec.max_num_batched_tokens, eos_token_ids=frozenset(eos_token_ids),
                bidirectional_images=spec.bidirectional_images, frames_per_token=spec.frames_per_token,
                num_host_snapshots=num_host_snapshots, routed_experts=spec.routed_experts,
                block_bytes=spec.bytes_per_block, snapshot_bytes=size.snapshot_bytes,
            ),
            clock,
            drafter=drafter,
            connectors=(connector,) if connector is not None else (),
            grammars=grammars,
        )  # fmt: skip
        yield engine
        engine.check()
    finally:
        executor.close()


def spec_of(folder: Path, **options: Any) -> KvCacheSpec:
    """What the ranks tell of a model that they have loaded."""
    executor = create_executor(engine_options().parallel)
    try:
        return executor.load(ModelOptions(model=str(folder)), engine_options(use_tqdm_on_load=False, **options))
    finally:
        executor.close()


def run(
    engine: Engine, prompts: list[list[int]], sampling: SamplingParameters = GREEDY, **fields: Any
) -> list[list[Output]]:
    """Runs requests that differ in their prompts to their end; outputs by request and choice."""
    return run_requests(engine, [GenerationRequest("r", prompt, sampling, **fields) for prompt in prompts])


def advance(engine: Engine) -> list[SequenceDelta]:
    """Runs a step; if there is nothing to compute until images are encoded or the like, waits first, as EngineLoop."""
    if engine.is_waiting or not engine.has_work:
        time.sleep(_LOOK_SECONDS)
    return engine.step()


def run_requests(engine: Engine, requests: list[GenerationRequest]) -> list[list[Output]]:
    """Runs requests to their end; outputs by request and choice."""
    first = random.getrandbits(40)
    for index, request in enumerate(requests):
        engine.add(first + index, request)
    outputs = [[Output() for _ in range(request.sampling.n)] for request in requests]
    unfinished = len(requests)  # some may wait for their grammars while there is no work
    while unfinished or engine.has_work:
        for delta in advance(engine):
            unfinished -= delta.is_final
            assert delta.error is None, delta.error
            output = outputs[delta.key - first][delta.choice_index]
            output.token_ids += delta.token_ids
            output.logprobs += delta.logprobs or []
            output.prompt_logprobs += delta.prompt_logprobs or []
            output.routed_experts += delta.routed_experts or []
            output.sampling_masks += delta.sampling_masks or []
            output.finish_reason = delta.finish_reason or output.finish_reason
            output.stop_token_id = delta.stop_token_id
            output.usage = delta.usage or output.usage
    return outputs


def tokens(outputs: list[list[Output]]) -> list[list[int]]:
    """The tokens of each request's first choice."""
    return [choices[0].token_ids for choices in outputs]


def random_prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    generator = random.Random(seed)
    return [[generator.randrange(VOCAB_SIZE) for _ in range(length)] for length in lengths]


def outcomes(engine: Engine, requests: list[GenerationRequest]) -> list[tuple[list[int], QuireError | None]]:
    """Runs requests to their ends: tokens and error of each."""
    tokens: dict[int, list[int]] = {key: [] for key in range(len(requests))}
    errors: dict[int, QuireError | None] = {}
    for key, request in enumerate(requests):
        engine.add(key, request)
    while engine.has_work:
        for delta in advance(engine):
            tokens[delta.key] += delta.token_ids
            if delta.is_final:
                errors[delta.key] = delta.error
    return [(tokens[key], errors[key]) for key in range(len(requests))]
