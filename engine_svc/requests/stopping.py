"""Decides when a sequence ends."""

from __future__ import annotations

from typing import NamedTuple

from engine_svc.requests.outputs import FinishReason
from engine_svc.requests.sequence import Sequence


class Ending(NamedTuple):
    """Where in a run of tokens a sequence ends, and why."""

    num_tokens: int  # tokens of the run that count
    reason: FinishReason
    stop_token_id: int | None = None  # the stop_token_ids entry that ended it; None for other reasons


def end_of_grammar(sequence: Sequence, ending: Ending | None, count: int) -> Ending | None:
    """The ending of a sequence after a run of `count` tokens was appended, taking its grammar into account.

    Args:
        ending: result of `find_ending`. A sequence whose grammar is complete does not count as cut by its length.
    """
    is_cut = ending is None or ending.reason is FinishReason.LENGTH
    return Ending(count, FinishReason.STOP) if is_cut and sequence.follower and sequence.follower.is_ended else ending


def find_ending(sequence: Sequence, token_ids: list[int]) -> Ending | None:
    """Finds where a sequence ends when it continues with a run of tokens; None if it does not end within the run."""
    live, known, repetition = sequence.owner, len(sequence.token_ids), sequence.repetition
    is_long = known + len(token_ids) >= sequence.max_length
    if not is_long and repetition is None and live.ending_token_ids.isdisjoint(token_ids):
        return None  # the usual case
    min_tokens = sequence.sampling.parameters.min_tokens
    for count, token_id in enumerate(token_ids, 1):
        num_output_tokens = known + count - sequence.num_prompt_tokens
        if token_id in live.ending_token_ids and num_output_tokens > min_tokens:
            return Ending(count, FinishReason.STOP, None if token_id in live.eos_token_ids else token_id)
        if known + count >= sequence.max_length:
            return Ending(count, FinishReason.STOP if sequence.hears_all else FinishReason.LENGTH)
        if repetition and repetition.advance(token_id) and num_output_tokens >= min_tokens:
            return Ending(count, FinishReason.REPETITION)
    return None
