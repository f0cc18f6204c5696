"""Meaningless steps for warm-up: they compile kernels before the first request, and show how much memory steps take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import torch

from engine_svc.plan import NewSequence, SamplingPlan, ScheduledSequence, StepPlan, TokenMasks
from engine_svc.sampling.truncation import ALL_LIMITS
from quire.sampling import SamplingParameters

MOST_CPU_TOKENS = 32  # of a prompt on a CPU, which compiles nothing
# Two sets of parameters that need copies of the logits: for logprobs before and after processing.
_DRAWN = (
    msgspec.structs.replace(ALL_LIMITS, repetition_penalty=1.1, allowed_token_ids=(0, 1), logprobs=1),
    SamplingParameters(logprobs=1, processed_logprobs=True, top_k=2, top_p=0.5),
)


def prompt_steps(
    tokens: int, num_blocks: int, num_groups: int, vocab_size: int, num_wanted_drafts: int,
    query_lens: Sequence[int] = (1,),
) -> list[StepPlan]:  # fmt: skip
    """A prefill of `tokens` tokens in `num_blocks` blocks of each group, then its last n again, for n of query_lens."""
    token_ids = torch.randint(vocab_size, (tokens,), generator=torch.Generator().manual_seed(0)).tolist()
    blocks = [list(range(group * num_blocks, (group + 1) * num_blocks)) for group in range(num_groups)]
    prompt = NewSequence(0, token_ids, tokens, 0, blocks, SamplingPlan(SamplingParameters(temperature=0.0)))
    counts = [tokens, *(min(tokens, count) for count in query_lens)]
    steps = [
        ScheduledSequence(0, tokens - count, count, 1, [], num_wanted_drafts=num_wanted_drafts) for count in counts
    ]
    return [StepPlan(0, [] if number else [prompt], [step]) for number, step in enumerate(steps)]


def tail_step(count: int, context: int, block_size: int, num_groups: int) -> StepPlan:
    """A step of `count` new tokens after `context` arbitrary ones, all in a single block of each group."""
    tokens = context + count
    blocks = [[group] * -(-tokens // block_size) for group in range(num_groups)]
    sampling = SamplingPlan(SamplingParameters(temperature=0.0))
    prompt = NewSequence(0, [0] * tokens, tokens, context, blocks, sampling)
    return StepPlan(0, [prompt], [ScheduledSequence(0, context, count, 1, [])])


def drawing_steps(slots: Sequence[int], num_groups: int, vocab_size: int) -> Iterator[tuple[StepPlan, TokenMasks]]:
    """Steps in which the sequences of all slots decode and sample, with all kinds of limits and with logprobs.

    Their KV cache, in one block of each group, is meaningless.
    """
    blocks = [[group] for group in range(num_groups)]
    masks = TokenMasks([*slots], bytes([0xFF]) * (-(-vocab_size // 32) * 4 * len(slots)))
    for parameters in _DRAWN:
        sampling = SamplingPlan(parameters, follows_grammar=True)
        new = [NewSequence(slot, [0], 1, 0, blocks, sampling) for slot in slots]
        yield StepPlan(0, new, [ScheduledSequence(slot, 0, 1, 1, []) for slot in slots], awaits_masks=True), masks
