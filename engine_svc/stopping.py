"""When a sequence is done."""

from __future__ import annotations

from engine_svc.outputs import FinishReason
from engine_svc.scheduler.sequence import Sequence

Stop = tuple[FinishReason, int | None]


def stop_after(sequence: Sequence, token_id: int) -> Stop | None:
    """Why the sequence ends with `token_id`, which has been appended to it; None when it goes on.

    The second entry is the stop_token_ids entry that ended it; None when end-of-sequence or the length did.
    """
    live = sequence.owner
    length = len(sequence.token_ids)
    if token_id in live.eos_token_ids and length - sequence.num_prompt_tokens > sequence.sampling.parameters.min_tokens:
        return FinishReason.STOP, None
    if (
        token_id in live.stop_token_ids
        and length - sequence.num_prompt_tokens > sequence.sampling.parameters.min_tokens
    ):
        return FinishReason.STOP, token_id
    if length >= sequence.max_length:
        return FinishReason.LENGTH, None
    return None
