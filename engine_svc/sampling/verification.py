"""Verifies drafted tokens by sampling as if nothing had been drafted.

At each position of a sequence's drafts the model samples its own token, with that position's noise. A draft is accepted
exactly if it equals that token; positions after the first rejected draft do not count. So the output is exactly that
without drafts, whatever was drafted and whatever changes the logits: drafts only affect how many tokens a step yields.
It is still rejection sampling: a drafted token is accepted with the probability that the model gives it, and otherwise
another token is sampled from the rest of the distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from engine_svc.parallel.vocabulary import VocabularyPart
from engine_svc.plan import OVERFLOW, PositionLogprobs, TokenMasks
from engine_svc.sampling.isolation import sample_rows
from engine_svc.sampling.rows import NO_DRAFT, SampledRows
from engine_svc.sampling.sampler import SampleOutput, Sampler
from engine_svc.transfer import to_device


def sample_runs(
    sampler: Sampler, logits: torch.Tensor, rows: SampledRows, masks: TokenMasks | None = None,
    part: VocabularyPart | None = None,
) -> tuple[list[SampleOutput], dict[int, str]]:  # fmt: skip
    """Like sample_rows, with drafts.

    If no stage of a sequence depends on previous tokens, all its rows are sampled at once, and the host does not wait
    for the device. Rows of other sequences are sampled in rounds: each only after the draft of the previous one was
    accepted. So stages only record tokens that count, and never have to take any back.

    Args:
        logits: float32 [rows, vocabulary]; partly overwritten.
        rows: rows of the same sequence are adjacent.
        part: see Sampler.sample.
    """
    if not rows.drafts:
        return sample_rows(sampler, logits, rows, masks, part)
    waiting = {slot for slot in set(rows.slots) if sampler.is_sequential(slot)}
    chosen = [row for row, slot in enumerate(rows.slots) if slot not in waiting or not rows.offsets[row]]
    outputs: list[SampleOutput] = []
    failed: dict[int, str] = {}
    while chosen:
        some = logits if len(chosen) == len(rows) else logits[to_device(chosen, logits.device)]
        found, alone = sample_rows(sampler, some, rows.take(chosen), masks, part)
        outputs += found
        failed |= alone
        right = {slot for output in found for slot in _right(output, waiting)}
        chosen = [row + 1 for row in chosen if rows.slots[row] in right]
    return outputs, failed


def _right(output: SampleOutput, waiting: set[int]) -> list[int]:
    """The waiting slots whose drafts in this output were accepted."""
    if waiting.isdisjoint(output.rows.slots):
        return []
    found = zip(output.rows.slots, output.rows.drafts, output.on_device.tolist(), strict=True)
    return [slot for slot, draft, token_id in found if draft == token_id and slot in waiting]


@dataclass(frozen=True)
class Runs:
    """Tokens that a step has sampled, by slot."""

    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[PositionLogprobs]] = field(default_factory=dict)  # of sequences that want them
    sampling_masks: dict[int, list[list[int]]] = field(default_factory=dict)  # the same
    failed: dict[int, str] = field(default_factory=dict)  # slot → reason


def read_runs(outputs: Sequence[SampleOutput]) -> Runs:
    """The accepted drafts of each sequence and the token after them. Call it once the step is done."""
    runs = Runs()
    ended: set[int] = set()
    for output in outputs:
        logprobs, masks = output.logprobs(), output.sampling_masks()
        for row, slot, token_id, is_broken, draft in _read(output):
            if slot in ended:
                continue
            runs.token_ids.setdefault(slot, []).append(token_id)
            if row in logprobs:
                runs.logprobs.setdefault(slot, []).append(logprobs[row])
            if row in masks:
                runs.sampling_masks.setdefault(slot, []).append(masks[row])
            if is_broken:
                runs.failed[slot] = OVERFLOW
            if is_broken or token_id != draft:
                ended.add(slot)
    return runs


def _read(output: SampleOutput) -> Iterator[tuple[int, int, int, bool, int]]:
    rows, count = output.rows, len(output.rows)
    broken = output.broken.broken.tolist()
    drafts = rows.drafts or [NO_DRAFT] * count
    return zip(range(count), rows.slots, output.token_ids.tolist(), broken, drafts, strict=True)
