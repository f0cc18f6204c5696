"""What the sampler knows of one sequence from its first step to its last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine_svc.plan import SamplingPlan

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SlotState:
    """A plan, checked and in the form that a step takes."""

    plan: SamplingPlan
    num_prompt_tokens: int
    seed: np.uint64
    bias_ids: Ids
    bias: npt.NDArray[np.float32]  # of these ids
    suppressed: Ids  # until min_tokens are generated

    def suppresses(self, num_tokens: int) -> bool:
        """Whether the token after `num_tokens`, prompt and output, must not end the sequence."""
        return len(self.suppressed) > 0 and num_tokens - self.num_prompt_tokens < self.plan.parameters.min_tokens


def make_state(plan: SamplingPlan, num_prompt_tokens: int, vocab_size: int) -> SlotState:
    """
    Raises:
        ValueError: the plan has a token id outside of the vocabulary; on a GPU, a kernel that met it would end it all.
        OverflowError: its seed has more than 64 bits.
    """
    return SlotState(
        plan=plan,
        num_prompt_tokens=num_prompt_tokens,
        seed=np.uint64(plan.seed),
        bias_ids=checked_ids([token_id for token_id, _ in plan.parameters.logit_bias], vocab_size),
        bias=np.array([bias for _, bias in plan.parameters.logit_bias], np.float32),
        suppressed=checked_ids(plan.suppress_token_ids if plan.parameters.min_tokens else (), vocab_size),
    )


def checked_ids(token_ids: list[int] | tuple[int, ...], vocab_size: int) -> Ids:
    """
    Raises:
        ValueError: an id lies outside of the vocabulary.
    """
    ids = np.array(token_ids, np.int64)
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise ValueError(f"token ids from {ids.min()} to {ids.max()} in a vocabulary of {vocab_size}")
    return ids
