"""One row's fault is that row's: a batch that cannot be sampled is sampled row by row."""

from __future__ import annotations

import logging

import torch

from engine_svc.parallel.vocabulary import VocabularyPart
from engine_svc.plan import TokenMasks
from engine_svc.sampling.rows import NO_DRAFT, SampledRows
from engine_svc.sampling.sampler import SampleOutput, Sampler

logger = logging.getLogger(__name__)


def sample_rows(
    sampler: Sampler, logits: torch.Tensor, rows: SampledRows, masks: TokenMasks | None = None,
    part: VocabularyPart | None = None,
) -> tuple[list[SampleOutput], dict[int, str]]:  # fmt: skip
    """As Sampler.sample, but for rows that raise.

    Returns:
        The other rows, in their order; slot → why it failed. Rows behind a drafted token that was wrong may be missing.

    Where ranks share the logits, what a row raises it raises on all of them, before they have met for it or after.

    Raises: what no row is to blame for, such as a device or a rank that is lost.
    """
    try:
        return [sampler.sample(logits, rows, masks, part)], {}
    except Exception as error:
        logger.error("%d rows cannot be sampled together; each is now sampled alone", len(rows), exc_info=error)
    best = logits[:1].max(dim=-1)
    float(best.values)  # raises if the device does not work any more
    if part is not None:
        part.best(best.values, best.indices)  # or another rank
    return _sample_apart(sampler, logits, rows, masks, part)


def _sample_apart(
    sampler: Sampler, logits: torch.Tensor, rows: SampledRows, masks: TokenMasks | None, part: VocabularyPart | None
) -> tuple[list[SampleOutput], dict[int, str]]:
    outputs: list[SampleOutput] = []
    failed: dict[int, str] = {}
    ended: set[int] = set()  # slots: what would raise behind a wrong draft, or once more, is nobody's fault
    drafts = rows.drafts or [NO_DRAFT] * len(rows)
    for row, (slot, draft) in enumerate(zip(rows.slots, drafts, strict=True)):
        if slot in ended:
            continue
        try:
            outputs.append(sampler.sample(logits[row : row + 1], rows.take([row]), masks, part))
        except Exception as error:
            failed[slot] = blame(slot, "its token could not be sampled", error)
        if slot in failed or int(outputs[-1].on_device[0]) != draft:
            ended.add(slot)
    return outputs, failed


def blame(slot: int, what: str, error: Exception) -> str:
    """Logs an error that is one sequence's own; returns what its caller is told."""
    logger.error("slot %d: %s", slot, what, exc_info=error)
    return f"{what} ({type(error).__name__})"
