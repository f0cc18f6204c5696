"""Cost of scheduler and KV cache per step: `python -m benchmarks.scheduler`.

An engine whose executor computes nothing decodes 256 sequences, with few and with many blocks in the prefix cache: the
cost must not depend on their number. Then it runs prompts without prefix cache hits, with and without prefix caching.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from benchmarks.machine import heading
from engine_svc.core.engine import Engine, EngineFacts
from engine_svc.executor.base import Executor
from engine_svc.plan import CacheSize, KvCacheSpec, StepPlan, StepResult, TokenMasks
from engine_svc.requests.request import GenerationRequest
from engine_svc.upkeep import Upkeep
from quire.options.base import build
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from quire.sampling import SamplingParameters

BLOCK_SIZE = 16
SEQUENCES = 256
PROMPT = 512
STEPS = 200


class NoExecutor(Executor):
    """An executor that samples token 0 immediately."""

    def load(self, model: ModelOptions, options: EngineOptions) -> KvCacheSpec:
        """Nothing to load."""
        raise NotImplementedError

    def allocate(self, size: CacheSize) -> None:
        """Nothing to allocate."""

    def submit(self, plan: StepPlan) -> None:
        """Prepares one token for each sequence that samples."""
        slots = [sequence.slot for sequence in plan.scheduled if sequence.num_sampled_positions]
        self._result = StepResult(slots, [[0] for _ in slots], {}, {}, 0.0, 0.0)

    def send_masks(self, masks: TokenMasks) -> None:
        """Does nothing: no sequence follows a grammar."""

    def collect(self) -> StepResult:
        """The result of the last submit."""
        return self._result

    def upkeep(self, command: Upkeep) -> list[str]:
        """Does nothing."""
        return []

    def close(self) -> None:
        """Nothing to free."""


def make_engine(num_blocks: int, caching: bool = True) -> Engine:
    return Engine(
        NoExecutor(),
        build(EngineOptions, {"max_num_seqs": SEQUENCES, "enable_prefix_caching": caching}),
        EngineFacts(num_blocks=num_blocks, block_size=BLOCK_SIZE, max_model_len=4096, max_num_batched_tokens=8192),
    )


def request(key: int, prompt_tokens: int, max_tokens: int) -> GenerationRequest:
    """A request whose prompt shares no prefix with others."""
    prompt = [key, *range(prompt_tokens - 1)]
    return GenerationRequest(f"r{key}", prompt, SamplingParameters(max_tokens=max_tokens, ignore_eos=True))


def fill_cache(engine: Engine, num_blocks: int, keys: Iterator[int]) -> None:
    """Runs requests to their end until about `num_blocks` blocks are cached."""
    for _ in range(num_blocks * BLOCK_SIZE // 4000):
        key = next(keys)
        engine.add(key, request(key, 4000, 1))
        while engine.has_work:
            engine.step()


def microseconds_per_step(engine: Engine, keys: Iterator[int]) -> float:
    """Median cost of a step that decodes all sequences."""
    for _ in range(SEQUENCES):
        key = next(keys)
        engine.add(key, request(key, PROMPT, STEPS + 100))
    while engine.load().waiting_requests or engine.load().waiting_prefill_tokens:
        engine.step()
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def seconds_of_prompts(caching: bool) -> float:
    """Time for prompts of 4,000 tokens that share nothing."""
    engine = make_engine(100_000, caching)
    start = time.perf_counter()
    for key in range(64):
        engine.add(key, request(key, 4000, 1))
    while engine.has_work:
        engine.step()
    return time.perf_counter() - start


def main() -> None:
    print(heading())
    print("| blocks cached | microseconds per step of 256 decoding sequences |\n|---|---|")
    for cached in (0, 10_000, 200_000):
        keys = iter(range(1_000_000))
        engine = make_engine(20_000 + cached)
        fill_cache(engine, cached, keys)
        print(f"| {cached:,} | {microseconds_per_step(engine, keys):.0f} |")
    rounds = [(seconds_of_prompts(False), seconds_of_prompts(True)) for _ in range(5)]
    without, with_cache = (statistics.median(column) for column in zip(*rounds, strict=True))
    extra = (with_cache - without) / (64 * 4000) * 1e6
    print(f"\nPrefix caching costs {extra:.3f} microseconds per prompt token when nothing hits.")


if __name__ == "__main__":
    main()
