"""The sampler: per-slot state that lasts over steps, and one vectorised pass per step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine_svc.plan import PositionLogprobs, SamplingPlan
from engine_svc.sampling.logprobs import position_logprobs
from engine_svc.sampling.noise import uniforms
from engine_svc.sampling.penalties import Penalties
from engine_svc.sampling.truncation import draw


@dataclass(frozen=True)
class SampleOutput:
    """One entry for each row of logits."""

    token_ids: torch.Tensor  # int64 [rows], on the host
    logprobs: dict[int, PositionLogprobs]  # by slot, for those that want them
    failed: dict[int, str]  # slot → why nothing could be sampled there


class Sampler:
    """Samples one token for each of the rows it is given. A slot's state is set by `add` and lasts until the next."""

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._device = device
        self._vocab_size = vocab_size
        self._plans: list[SamplingPlan] = [SamplingPlan()] * max_num_seqs
        self._prompt_lens = [0] * max_num_seqs
        self._seeds = np.zeros(max_num_seqs, np.uint64)
        self._penalties = Penalties(max_num_seqs, vocab_size, device)

    def add(self, slot: int, plan: SamplingPlan, token_ids: list[int], num_prompt_tokens: int) -> None:
        """Gives a slot to a sequence: all its tokens known so far, those of the prompt first."""
        self._plans[slot] = plan
        self._prompt_lens[slot] = num_prompt_tokens
        self._seeds[slot] = plan.seed
        self._penalties.add(slot, plan, token_ids, num_prompt_tokens)

    def sample(self, logits: torch.Tensor, slots: list[int], num_tokens: list[int]) -> SampleOutput:
        """Samples.

        Args:
            logits: float32 [rows, vocabulary]; may be overwritten.
            slots: of each row.
            num_tokens: tokens known of each row's sequence before this one.
        """
        plans = [self._plans[slot] for slot in slots]
        wanting = [row for row, plan in enumerate(plans) if plan.num_logprobs is not None]
        raw = logits[wanting] if wanting else None
        self._bias(logits, plans, slots, num_tokens)
        self._penalties.apply(logits, plans, slots)
        best = logits.max(dim=-1)
        token_ids = best.indices
        self._draw_random(logits, token_ids, plans, slots, num_tokens)
        broken = torch.isnan(best.values)
        failed = {slots[row]: "the model's logits are not finite" for row in broken.nonzero()[:, 0].tolist()}
        if failed:
            token_ids.masked_fill_(broken, 0)
        self._penalties.record(plans, slots, token_ids)
        logprobs: dict[int, PositionLogprobs] = {}
        if raw is not None:
            counts = [plans[row].num_logprobs or 0 for row in wanting]
            found = position_logprobs(raw, token_ids[wanting], counts)
            logprobs = {slots[row]: entry for row, entry in zip(wanting, found, strict=True)}
        return SampleOutput(token_ids.cpu(), logprobs, failed)

    def _bias(self, logits: torch.Tensor, plans: list[SamplingPlan], slots: list[int], num_tokens: list[int]) -> None:
        """Logit biases, and tokens that must not end a sequence yet."""
        for row, plan in enumerate(plans):
            if plan.logit_bias:
                ids, values = zip(*plan.logit_bias, strict=True)
                logits[row, list(ids)] += torch.tensor(values, device=self._device)
            if plan.min_tokens and num_tokens[row] - self._prompt_lens[slots[row]] < plan.min_tokens:
                logits[row, list(plan.suppress_token_ids)] = -torch.inf

    def _draw_random(
        self,
        logits: torch.Tensor,
        token_ids: torch.Tensor,
        plans: list[SamplingPlan],
        slots: list[int],
        num_tokens: list[int],
    ) -> None:
        """Overwrites the greedy choice of the rows that sample.

        Rows with top-k or top-p draw along the sorted vocabulary and the others along the plain one: each row by its
        own plan, so that its token does not depend on the rows beside it.
        """
        for truncated in (False, True):
            rows = [r for r, plan in enumerate(plans) if plan.temperature > 0 and _truncates(plan) == truncated]
            if rows:
                drawn = self._draw(logits, [plans[r] for r in rows], rows, slots, num_tokens)
                token_ids[rows] = drawn.clamp_(max=self._vocab_size - 1)

    def _draw(
        self, logits: torch.Tensor, plans: list[SamplingPlan], rows: list[int], slots: list[int], num_tokens: list[int]
    ) -> torch.Tensor:
        """A token for each of the rows, which all sort or all do not."""
        noise = uniforms(self._seeds[[slots[row] for row in rows]], np.array([num_tokens[r] for r in rows], np.uint64))

        def column(values: list[float], neutral: float) -> torch.Tensor | None:
            return None if all(v == neutral for v in values) else torch.tensor(values, device=self._device)

        top_k = [min(plan.top_k, self._vocab_size) for plan in plans]
        return draw(
            logits if len(rows) == len(logits) else logits[rows],
            torch.tensor([plan.temperature for plan in plans], device=self._device),
            torch.tensor(top_k, device=self._device) if any(top_k) else None,
            column([plan.top_p for plan in plans], 1.0),
            column([plan.min_p for plan in plans], 0.0),
            torch.from_numpy(noise.astype(np.float32)).to(self._device).clamp_(max=1 - 2**-24),
        )


def _truncates(plan: SamplingPlan) -> bool:
    return plan.top_k > 0 or plan.top_p < 1.0
