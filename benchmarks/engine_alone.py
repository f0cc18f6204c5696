"""The engine in this process, without any service around it: what the stack is compared with."""

from __future__ import annotations

import time
from types import TracebackType

from benchmarks.load import Result, Timings, Workload
from engine_svc.engine import Engine, EngineConfig
from engine_svc.executor.base import create_executor
from engine_svc.outputs import SequenceDelta
from engine_svc.request import GenerationRequest, SamplingParameters
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions


class EngineAlone:
    """A context in which workloads can be run on one engine."""

    def __init__(self, model: str) -> None:
        options = EngineOptions()
        self._executor = create_executor(options)
        spec = self._executor.load(ModelOptions(model=model), options)
        num_blocks = spec.available_bytes // spec.bytes_per_block
        self._executor.allocate(num_blocks)
        self._engine = Engine(
            self._executor,
            EngineConfig(
                num_blocks=num_blocks,
                block_size=spec.block_size,
                max_model_len=spec.max_model_len,
                max_num_seqs=options.max_num_seqs,
                max_num_batched_tokens=spec.max_num_batched_tokens,
            ),
        )
        self._next_key = 0

    def __enter__(self) -> EngineAlone:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.close()

    def run(self, workload: Workload) -> Result:
        """Runs the workload with `streams` requests under way at any time, as `run_http` does."""
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


def _record(timing: Timings, delta: SequenceDelta, now: float) -> None:
    timing.first = timing.first or now
    timing.last = now
    timing.tokens += len(delta.token_ids)
