"""One rank of a worker: loads the model, allocates the cache, runs steps."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from engine_svc.loader.folder import weights_folder
from engine_svc.loader.model import load_model
from engine_svc.models.config import ModelFacts
from engine_svc.parallel.group import ParallelGroup
from engine_svc.plan import (
    KvCacheSpec,
    NewSequence,
    PositionLogprobs,
    SamplingPlan,
    ScheduledSequence,
    StepPlan,
    StepResult,
)
from engine_svc.runner.batch import Batch, SlotBuffers
from engine_svc.runner.memory import kv_cache_bytes, token_budget
from engine_svc.sampling.logprobs import position_logprobs
from engine_svc.sampling.sampler import Sampler
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions

_SCORED_ROWS = 256


class Runner:
    """Order of calls: construct (loads the weights), `allocate`, `step`…"""

    def __init__(self, model: ModelOptions, options: EngineOptions, group: ParallelGroup, device: torch.device) -> None:
        """
        Raises:
            StartupError: the model cannot be found, read or supported.
        """
        self._options = options
        self._device = device
        if device.type == "cpu":
            torch.set_num_threads(options.cpu_threads or max(1, (os.cpu_count() or 1) // group.world_size))
        loaded = load_model(weights_folder(model), options, group, device)
        self._model, self._facts, self._attention = loaded.model, loaded.facts, loaded.attention
        self._dtype, self._max_model_len = loaded.dtype, loaded.max_model_len
        self._token_budget = options.max_num_batched_tokens or token_budget(device)
        self._buffers = SlotBuffers(options.max_num_seqs, self._max_model_len, self._attention.shape.block_size, device)
        self._sampler = Sampler(options.max_num_seqs, self._facts.vocab_size, device)
        self._prompts: dict[int, tuple[int, int]] = {}  # slot → prompt tokens, prompt logprobs wanted
        self._caches: list[Any] = []
        self._host_caches: list[Any] = []

    def spec(self) -> KvCacheSpec:
        """What the control side must know; on a GPU, runs a largest step first to see what it needs."""
        if self._device.type == "cuda":
            self._profile()
        return KvCacheSpec(
            architecture=self._facts.architecture,
            dtype=str(self._dtype).removeprefix("torch."),
            device=_device_name(self._device),
            vocab_size=self._facts.vocab_size,
            max_model_len=self._max_model_len,
            bytes_per_block=self._attention.bytes_per_block(self._facts.num_layers),
            available_bytes=kv_cache_bytes(self._options, self._device),
            attention_backend=self._attention.name,
            block_size=self._attention.shape.block_size,
            max_num_batched_tokens=self._token_budget,
            sliding_window=_common_window(self._facts),
        )

    def _profile(self) -> None:
        """Runs a step of the whole token budget over a cache just large enough, then forgets it."""
        tokens = min(self._token_budget, self._max_model_len)
        self.allocate(-(-tokens // self._attention.shape.block_size))
        self._caches = []
        torch.cuda.empty_cache()

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Allocates the KV cache and its tier in host memory; warms the kernels up with a prefill and a decode."""
        self._caches = self._attention.allocate(num_blocks, self._facts.num_layers)
        self._host_caches = self._attention.allocate_host(self._caches, num_host_blocks)
        capacity = num_blocks * self._attention.shape.block_size
        tokens = min(self._token_budget, self._max_model_len, capacity)
        if self._device.type == "cpu":
            tokens = min(tokens, 32)
        blocks = list(range(-(-tokens // self._attention.shape.block_size)))
        prompt = NewSequence(0, [0] * tokens, tokens, 0, blocks, SamplingPlan(temperature=0.0))
        self.step(StepPlan(0, [prompt], [ScheduledSequence(0, 0, tokens, True, [])]))
        self.step(StepPlan(0, [], [ScheduledSequence(0, tokens - 1, 1, True, [])]))

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        """Runs the plan; see StepResult."""
        start = time.perf_counter()
        self._attention.copy_blocks(self._caches, self._host_caches, plan.copies_out)
        self._attention.copy_blocks(self._host_caches, self._caches, plan.copies_in)
        for sequence in plan.new_sequences:
            self._add(sequence)
        batch = self._buffers.flatten(plan)
        prepared = self._attention.prepare(batch.metadata)
        hidden = self._model.forward(batch.token_ids, batch.positions, self._caches, prepared)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        forward = time.perf_counter()
        prompt_logprobs = self._prompt_logprobs(batch, hidden) if self._prompts else {}
        sampling = [index for index, sequence in enumerate(plan.scheduled) if sequence.samples]
        slots, token_ids, logprobs, failed = self._sample(batch, hidden, sampling)
        return StepResult(
            slots, token_ids, logprobs, prompt_logprobs,
            (forward - start) * 1e3, (time.perf_counter() - start) * 1e3, failed,
        )  # fmt: skip

    def _add(self, sequence: NewSequence) -> None:
        self._buffers.add(sequence)
        self._sampler.add(sequence.slot, sequence.sampling, sequence.token_ids, sequence.num_prompt_tokens)
        self._prompts.pop(sequence.slot, None)
        if sequence.sampling.num_prompt_logprobs is not None:
            self._prompts[sequence.slot] = (sequence.num_prompt_tokens, sequence.sampling.num_prompt_logprobs)

    def _sample(
        self, batch: Batch, hidden: torch.Tensor, sampling: list[int]
    ) -> tuple[list[int], list[int], dict[int, PositionLogprobs], dict[int, str]]:
        if not sampling:
            return [], [], {}, {}
        rows = [batch.query_start[index + 1] - 1 for index in sampling]
        slots = [batch.slots[index] for index in sampling]
        lengths = [batch.metadata.seq_lens_host[index] for index in sampling]
        logits = self._model.logits(hidden if len(rows) == len(hidden) else hidden[rows])
        output = self._sampler.sample(logits, slots, lengths)
        token_ids: list[int] = output.token_ids.tolist()
        self._buffers.token_ids[slots, lengths] = token_ids
        return slots, token_ids, output.logprobs, output.failed

    def _prompt_logprobs(self, batch: Batch, hidden: torch.Tensor) -> dict[int, list[PositionLogprobs]]:
        """For the prompts that want them: the row at position p tells of the token at p + 1."""
        found = {}
        for index, slot in enumerate(batch.slots):
            num_prompt, count = self._prompts.get(slot, (0, 0))
            first = batch.computed[index]
            last = min(batch.metadata.seq_lens_host[index], num_prompt - 1)
            if last > first:
                start = batch.query_start[index]
                targets = torch.from_numpy(self._buffers.token_ids[slot, first + 1 : last + 1]).to(self._device)
                found[slot] = self._score(hidden[start : start + last - first], targets, count)
        return found

    def _score(self, hidden: torch.Tensor, targets: torch.Tensor, count: int) -> list[PositionLogprobs]:
        """A few rows at a time: the logits of a whole chunk of the prompt could take gigabytes."""
        found: list[PositionLogprobs] = []
        for rows, tokens in zip(hidden.split(_SCORED_ROWS), targets.split(_SCORED_ROWS), strict=True):
            found += position_logprobs(self._model.logits(rows), tokens, [count] * len(tokens))
        return found


def _common_window(facts: ModelFacts) -> int | None:
    """The sliding window of all layers; None when they differ or any of them sees everything."""
    windows = set(facts.sliding_windows)
    return windows.pop() if len(windows) == 1 else None


def _device_name(device: torch.device) -> str:
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else "cpu"
