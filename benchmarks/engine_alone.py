"""The engine in this process, without any service around it: the baseline for the whole stack."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from benchmarks.load import Result, Timings, Workload
from engine_svc.core.engine import Engine, EngineFacts
from engine_svc.executor.base import Executor, create_executor
from engine_svc.kv_cache.sizing import size_kv_cache
from engine_svc.requests.outputs import SequenceDelta
from engine_svc.requests.request import GenerationRequest
from quire.options.base import build
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from quire.sampling import SamplingParameters


class EngineAlone:
    """A context in which workloads can be run on one engine."""

    def __init__(self, model: str, executor: Executor | None = None, **options_given: Any) -> None:
        """
        Args:
            executor: None means the one that the options choose.
            options_given: engine options.
        """
        options = build(EngineOptions, options_given)
        self._executor = executor or create_executor(options.parallel)
        spec = self._executor.load(ModelOptions(model=model), options)
        size = size_kv_cache(spec, options)
        self._executor.allocate(size.allocated)
        self._engine = Engine(
            self._executor,
            options,
            EngineFacts(
                num_blocks=size.num_blocks,
                block_size=spec.block_size,
                num_stages=spec.num_stages,
                max_model_len=size.max_model_len,
                windows=spec.windows,
                has_states=spec.state_bytes > 0,
                num_snapshots=size.num_snapshots,
                snapshot_tokens=size.snapshot_tokens,
                max_num_batched_tokens=spec.max_num_batched_tokens,
            ),
        )
        self._next_key = 0
        self.execute_milliseconds = 0.0  # the model's share of a step, in the last decode_seconds

    def __enter__(self) -> EngineAlone:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.close()

    def run(self, workload: Workload) -> Result:
        """Runs the workload with `streams` requests in flight at any time, as `run_http` does."""
        waiting = workload.prompts()[::-1]
        start = time.perf_counter()
        sent: dict[int, float] = {}
        timings: dict[int, Timings] = {}

        def send() -> None:
            self._next_key += 1
            sampling = SamplingParameters(temperature=0, max_tokens=workload.output_length, ignore_eos=True)
            sent[self._next_key] = time.perf_counter()
            timings[self._next_key] = Timings()
            self._engine.add(self._next_key, GenerationRequest(f"bench-{self._next_key}", waiting.pop(), sampling))

        for _ in range(workload.streams):
            send()
        while self._engine.has_work:
            deltas = self._engine.step()
            now = time.perf_counter()
            for delta in deltas:
                _record(timings[delta.key], delta, now - sent[delta.key])
                if delta.is_final and waiting:
                    send()
        return Result(time.perf_counter() - start, list(timings.values()))

    def prefill_seconds(self, tokens: int) -> float:
        """The time from adding a prompt of `tokens` tokens to its first output token."""
        self._add(tokens, 1)
        start = time.perf_counter()
        self._finish()
        return time.perf_counter() - start

    def decode_seconds(
        self, sequences: int, prompt: int, steps: int, watch: AbstractContextManager[object] = nullcontext()
    ) -> float:
        """Median time of a step in which all sequences decode.

        Args:
            watch: entered while these steps run.
        """
        for _ in range(sequences):
            self._add(prompt, 10 * steps)
        while self._engine.load().waiting_prefill_tokens or self._engine.load().waiting_requests:
            self._engine.step()
        times, executed = [], [self._executed()]
        with watch:
            for _ in range(steps):
                start = time.perf_counter()
                self._engine.step()
                times.append(time.perf_counter() - start)
                executed.append(self._executed())
        self.execute_milliseconds = statistics.median(after - before for before, after in itertools.pairwise(executed))
        for key in range(self._next_key + 1):
            self._engine.abort(key)
        self._finish()
        return statistics.median(times)

    def _executed(self) -> float:
        return self._engine.load().counters.model_execute_milliseconds.sum

    def _add(self, prompt_tokens: int, max_tokens: int) -> None:
        self._next_key += 1
        prompt = [random.randrange(256) for _ in range(prompt_tokens)]
        sampling = SamplingParameters(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self._engine.add(self._next_key, GenerationRequest(f"bench-{self._next_key}", prompt, sampling))

    def _finish(self) -> None:
        while self._engine.has_work:
            self._engine.step()


def _record(timing: Timings, delta: SequenceDelta, now: float) -> None:
    timing.first = timing.first or now
    timing.last = now
    timing.tokens += len(delta.token_ids)
