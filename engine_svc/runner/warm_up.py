"""Steps that mean nothing: what they have had compiled, nobody waits for later, and what memory they take is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import torch

from engine_svc.plan import NewSequence, SamplingPlan, ScheduledSequence, StepPlan, TokenMasks
from engine_svc.sampling.truncation import ALL_LIMITS
from quire.sampling import SamplingParameters

# What takes copies of the logits: scores of the model's own, and of what tokens are drawn from.
_DRAWN = (
    msgspec.structs.replace(ALL_LIMITS, repetition_penalty=1.1, allowed_token_ids=(0, 1), logprobs=1),
    SamplingParameters(logprobs=1, processed_logprobs=True, top_k=2, top_p=0.5),
)


def prompt_steps(
    tokens: int, num_blocks: int, num_groups: int, vocab_size: int, num_wanted_drafts: int,
    query_lens: Sequence[int] = (1,),
) -> list[StepPlan]:  # fmt: skip
    """A prefill of so many tokens, which take so many blocks of each group, and again so many of the last of them."""
    token_ids = torch.randint(vocab_size, (tokens,), generator=torch.Generator().manual_seed(0)).tolist()
    blocks = [list(range(group * num_blocks, (group + 1) * num_blocks)) for group in range(num_groups)]
    prompt = NewSequence(0, token_ids, tokens, 0, blocks, SamplingPlan(SamplingParameters(temperature=0.0)))
    counts = [tokens, *(min(tokens, count) for count in query_lens)]
    steps = [
        ScheduledSequence(0, tokens - count, count, 1, [], num_wanted_drafts=num_wanted_drafts) for count in counts
    ]
    return [StepPlan(0, [] if number else [prompt], [step]) for number, step in enumerate(steps)]


def tail_step(count: int, context: int, block_size: int, num_groups: int) -> StepPlan:
    """So many new tokens behind so many others, which are anything and in one block of each group."""
    tokens = context + count
    blocks = [[group] * -(-tokens // block_size) for group in range(num_groups)]
    sampling = SamplingPlan(SamplingParameters(temperature=0.0))
    prompt = NewSequence(0, [0] * tokens, tokens, context, blocks, sampling)
    return StepPlan(0, [prompt], [ScheduledSequence(0, context, count, 1, [])])


def drawing_steps(slots: Sequence[int], num_groups: int, vocab_size: int) -> Iterator[tuple[StepPlan, TokenMasks]]:
    """Steps in which all these slots' sequences decode, and draw with all that limits them or is told of them. What is
    cached of them, in one block of each group, means nothing."""
    blocks = [[group] for group in range(num_groups)]
    masks = TokenMasks([*slots], bytes([0xFF]) * (-(-vocab_size // 32) * 4 * len(slots)))
    for parameters in _DRAWN:
        sampling = SamplingPlan(parameters, follows_grammar=True)
        new = [NewSequence(slot, [0], 1, 0, blocks, sampling) for slot in slots]
        yield StepPlan(0, new, [ScheduledSequence(slot, 0, 1, 1, []) for slot in slots], awaits_masks=True), masks
