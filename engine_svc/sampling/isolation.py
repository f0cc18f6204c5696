"""Isolates failing rows: a batch that cannot be sampled as a whole is sampled row by row."""

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
    """Like Sampler.sample, but isolates rows that raise.

    If ranks share the logits, a row that raises does so on all of them, either before or after they communicate for it.

    Returns:
        The outputs of the other rows, in order; and slot → reason for those that failed. Rows after a rejected draft
        may be missing.

    Raises: errors that no row causes, such as a lost device or rank.
    """
    try:
        return [sampler.sample(logits, rows, masks, part)], {}
    except Exception as error:
        logger.error("%d rows cannot be sampled together; each is now sampled alone", len(rows), exc_info=error)
    best = logits[:1].max(dim=-1)
    float(best.values)  # raises if the device no longer works
    if part is not None:
        part.best(best.values, best.indices)  # raises if another rank is lost
    return _sample_apart(sampler, logits, rows, masks, part)


def _sample_apart(
    sampler: Sampler, logits: torch.Tensor, rows: SampledRows, masks: TokenMasks | None, part: VocabularyPart | None
) -> tuple[list[SampleOutput], dict[int, str]]:
    outputs: list[SampleOutput] = []
    failed: dict[int, str] = {}
    ended: set[int] = set()  # slots: errors after a rejected draft or a first error do not count
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
    """Logs an error of one sequence; returns the message for its caller."""
    logger.error("slot %d: %s", slot, what, exc_info=error)
    return f"{what} ({type(error).__name__})"
