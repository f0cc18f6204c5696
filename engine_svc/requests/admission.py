"""Creates the sequences of a validated request for the scheduler."""

from __future__ import annotations

from engine_svc.kv_cache.block_table import BlockTable, Offer
from engine_svc.plan import SamplingPlan
from engine_svc.requests.sequence import LiveRequest, Sequence
from quire.sampling import SamplingParameters

_MASK = 2**64 - 1


def sequence_seed(seed: int, choice_index: int) -> int:
    """Key of the sampling noise of one of the n sequences, between 0 and 2**63 - 1.

    One step of the SplitMix64 generator (Steele, Lea, Flood 2014) from the state `seed + choice_index * golden ratio`:
    neighboring seeds and choices get unrelated keys, which are the same on every worker.
    """
    mixed = (seed + (choice_index + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) >> 1


def make_sequences(
    live: LiveRequest, order: tuple[int, int], max_model_len: int, frames_per_token: int = 0, *, seed: int
) -> list[Sequence]:
    """Creates the request's n sequences, except those that another worker has finished. None is scheduled yet.

    Args:
        order: rank and arrival, see Sequence.order.
        max_model_len: bounds the length of the sequences, in addition to max_tokens.
        frames_per_token: see ModelFacts; sequences end with the recording that they hear.
        seed: the request's own seed, or one drawn for it.
    """
    sampling, progress, adapter = live.request.sampling, live.request.progress, live.request.adapter
    prompt, contents = live.request.num_prompt_tokens, live.request.contents
    wanted = max_model_len if sampling.max_tokens is None else prompt + sampling.max_tokens
    most = min(wanted, max_model_len)
    ends = frames_per_token and live.recording is None
    heard = live.request.images[0].num_frames // frames_per_token if ends else most + 1
    unfinished = [choice for choice in range(sampling.n) if not (progress and progress[choice].finished)]
    # The prompt's log-probabilities were sent with choice 0's first token, if there was one.
    told = bool(progress) and (progress[0].finished or bool(progress[0].token_ids))
    return [
        Sequence(
            live,
            choice,
            (*order, choice),
            _sampling_plan(sampling, sequence_seed(seed, choice), live, choice == 0 and prompt > 1 and not told),
            min(most, heard),
            BlockTable(
                live.request.cache_salt,
                contents=contents,
                adapter="" if adapter is None else adapter.revision,
                offer=Offer(live.request.kv_source, prompt) if live.request.kv_source else Offer(),
            ),
            hears_all=heard <= most,
        )
        for choice in unfinished
    ]


def _sampling_plan(sampling: SamplingParameters, seed: int, live: LiveRequest, wants_prompt: bool) -> SamplingPlan:
    stops = live.ending_token_ids if sampling.min_tokens else frozenset()
    return SamplingPlan(
        sampling,
        seed,
        tuple(sorted(stops)),
        sampling.prompt_logprobs if wants_prompt else None,
        follows_grammar=live.request.constraint is not None,
    )
