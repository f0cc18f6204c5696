"""Repetition, presence and frequency penalties: counts of tokens, kept for the slots that need them."""

from __future__ import annotations

import torch

from engine_svc.plan import SamplingPlan
from engine_svc.transfer import to_device


class Penalties:
    """Token counts by slot. The tables are allocated when the first sequence with a penalty comes."""

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._shape = (max_num_seqs, vocab_size)
        self._device = device
        self._output_counts: torch.Tensor | None = None  # int32 [slots, vocabulary]
        self._in_prompt: torch.Tensor | None = None  # bool [slots, vocabulary]

    @staticmethod
    def used(plan: SamplingPlan) -> bool:
        """Whether the plan has any penalty."""
        return plan.repetition_penalty != 1.0 or plan.presence_penalty != 0.0 or plan.frequency_penalty != 0.0

    def add(self, slot: int, plan: SamplingPlan, token_ids: list[int], num_prompt_tokens: int) -> None:
        """Counts a sequence's tokens anew."""
        if not self.used(plan):
            return
        if self._output_counts is None or self._in_prompt is None:
            self._output_counts = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
            self._in_prompt = torch.zeros(self._shape, dtype=torch.bool, device=self._device)
        tokens = to_device(token_ids, self._device)
        self._in_prompt[slot] = False
        self._in_prompt[slot, tokens[:num_prompt_tokens]] = True
        output = tokens[num_prompt_tokens:]
        self._output_counts[slot] = torch.bincount(output, minlength=self._shape[1]).int() if len(output) else 0

    def apply(self, logits: torch.Tensor, plans: list[SamplingPlan], slots: list[int]) -> None:
        """Changes the logits of the rows that have penalties."""
        rows = [row for row, plan in enumerate(plans) if self.used(plan)]
        if not rows or self._output_counts is None or self._in_prompt is None:
            return
        index, chosen = to_device(rows, self._device), to_device([slots[row] for row in rows], self._device)
        counts = self._output_counts[chosen]

        def column(values: list[float]) -> torch.Tensor:
            return to_device(values, self._device)[:, None]

        repetition = column([plans[row].repetition_penalty for row in rows])
        some = logits[index]
        seen = self._in_prompt[chosen] | (counts > 0)
        some = torch.where(seen, torch.where(some > 0, some / repetition, some * repetition), some)
        some -= counts * column([plans[row].frequency_penalty for row in rows])
        some -= (counts > 0) * column([plans[row].presence_penalty for row in rows])
        logits[index] = some

    def record(self, plans: list[SamplingPlan], slots: list[int], token_ids: torch.Tensor) -> None:
        """Counts the tokens just sampled."""
        rows = [row for row, plan in enumerate(plans) if self.used(plan)]
        if rows and self._output_counts is not None:
            index, chosen = to_device(rows, self._device), to_device([slots[row] for row in rows], self._device)
            self._output_counts[chosen, token_ids[index]] += 1
