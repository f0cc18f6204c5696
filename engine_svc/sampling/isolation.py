"""One row's fault is that row's: a batch that cannot be sampled is sampled row by row."""

from __future__ import annotations

import logging

import torch

from engine_svc.plan import TokenMasks
from engine_svc.sampling.sampler import SampleOutput, Sampler

logger = logging.getLogger(__name__)


def sample_rows(
    sampler: Sampler,
    logits: torch.Tensor,
    slots: list[int],
    num_tokens: list[int],
    masks: TokenMasks | None = None,
) -> tuple[list[SampleOutput], dict[int, str]]:
    """As Sampler.sample, but for rows that raise.

    Returns:
        The other rows, in their order; slot → why it failed.

    Raises: what no row is to blame for, such as a device that is lost.
    """
    try:
        return [sampler.sample(logits, slots, num_tokens, masks)], {}
    except Exception as error:
        logger.error("%d rows cannot be sampled together; each is now sampled alone", len(slots), exc_info=error)
    float(logits.max())  # raises if the device does not work any more
    outputs: list[SampleOutput] = []
    failed: dict[int, str] = {}
    for row, slot in enumerate(slots):
        try:
            outputs.append(sampler.sample(logits[row : row + 1], [slot], [num_tokens[row]], masks))
        except Exception as error:
            failed[slot] = blame(slot, "its token could not be sampled", error)
    return outputs, failed


def blame(slot: int, what: str, error: Exception) -> str:
    """Logs an error that is one sequence's own; returns what its caller is told."""
    logger.error("slot %d: %s", slot, what, exc_info=error)
    return f"{what} ({type(error).__name__})"
