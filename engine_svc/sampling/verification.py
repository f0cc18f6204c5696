"""Drafted tokens are verified by sampling, as if nothing had been drafted.

At each position of a sequence's drafts the model samples its own token, with the noise of that position. A draft is
right exactly where it is that token; behind the first that is not, nothing counts. So the tokens are those that come
without drafts, one for one, whatever was drafted and whatever changes the logits: drafts decide only how many of them
come in a step. It is rejection sampling all the same: a drafted token comes with the probability that the model gives
it, else another by its share of the rest.
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
    """As sample_rows, with drafts.

    Where nothing that changes a sequence's logits goes by the tokens before, all its rows are sampled at once, and the
    host does not wait for a device. The others' are sampled round by round: a row only once the one before it has
    proved its draft right. So what stages note of a sequence are its tokens, and never has to be taken back.

    Args:
        logits: float32 [rows, vocabulary]; overwritten in part.
        rows: those of a sequence stand side by side.
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
    """Slots of the rows whose drafts are right, of those that wait for it."""
    if waiting.isdisjoint(output.rows.slots):
        return []
    found = zip(output.rows.slots, output.rows.drafts, output.on_device.tolist(), strict=True)
    return [slot for slot, draft, token_id in found if draft == token_id and slot in waiting]


@dataclass(frozen=True)
class Runs:
    """What a step has sampled, by slot."""

    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[PositionLogprobs]] = field(default_factory=dict)  # of those that want them
    failed: dict[int, str] = field(default_factory=dict)  # why


def read_runs(outputs: Sequence[SampleOutput]) -> Runs:
    """The drafts that were right and the token behind them, of each sequence, once the step is done."""
    runs = Runs()
    ended: set[int] = set()
    for output in outputs:
        logprobs = output.logprobs()
        for row, slot, token_id, is_broken, draft in _read(output):
            if slot in ended:
                continue
            runs.token_ids.setdefault(slot, []).append(token_id)
            if row in logprobs:
                runs.logprobs.setdefault(slot, []).append(logprobs[row])
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
