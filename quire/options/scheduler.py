"""Options of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option

_MOST_SEQUENCES = 256
SCHEDULING_POLICIES = ("fcfs", "priority")


@dataclass(frozen=True)
class SchedulerOptions:
    """Scheduling."""

    max_num_batched_tokens: int | None = option(
        None, "Token budget of one step. Default: 256 on a CPU, 2048 on a GPU (8192 on one with at least 64 GiB of "
        "memory); more if a step needs it to compute a whole image beside all decoding sequences.",
        minimum=1,
    )  # fmt: skip
    max_num_seqs: int | None = option(
        None, "Maximum number of sequences running at once. Default: 256, or fewer if memory does not hold the states "
        "of recurrent layers for so many.", minimum=1, maximum=4096,
    )  # fmt: skip
    scheduling_policy: str = option("fcfs", "Order in which requests are scheduled.", choices=SCHEDULING_POLICIES)
    enable_chunked_prefill: bool = option(
        True,
        "Splits long prompts across steps. Off: a prompt runs in one step, so --max-num-batched-tokens must be "
        "at least --max-model-len.",
    )
    max_num_partial_prefills: int = option(
        1, "Maximum number of prompts that are partially computed at the same time; another waits until one of them is "
        "complete.",
        minimum=1,
    )  # fmt: skip
    max_long_partial_prefills: int = option(
        1, "How many of these may be longer than --long-prefill-token-threshold. Shorter prompts may overtake longer "
        "ones.",
        minimum=1,
    )  # fmt: skip
    long_prefill_token_threshold: int = option(
        0, "A prompt with more than this many tokens left is long, and computes only this many per step. 0: no prompt "
        "is long.",
        minimum=0,
    )  # fmt: skip
    disable_chunked_mm_input: bool = option(
        False, "Does not split the tokens of an image between steps, except of one that is longer than what a step has "
        "left when it begins with the image: the step before ends where the image begins.",
    )  # fmt: skip
    async_scheduling: bool = option(
        True,
        "Plans the next step while one is running, where steps run asynchronously: on a GPU, and in the "
        "processes of mp.",
    )
    max_waiting_requests: int = option(
        4096, "Maximum number of waiting requests; further ones are refused as overload.", minimum=1
    )

    @property
    def most_sequences(self) -> int:
        """The maximum number of sequences running at once, where memory suffices."""
        return _MOST_SEQUENCES if self.max_num_seqs is None else self.max_num_seqs
