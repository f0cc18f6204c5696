"""Options of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option

SCHEDULING_POLICIES = ("fcfs", "priority")


@dataclass(frozen=True)
class SchedulerOptions:
    """Who computes how much in a step."""

    max_num_batched_tokens: int | None = option(
        None, "Token budget of one step; by default 256 on a CPU and 2048 on a GPU (8192 from 64 GiB of memory on).",
        minimum=1,
    )  # fmt: skip
    max_num_seqs: int = option(256, "Most sequences running at once.", minimum=1, maximum=4096)
    scheduling_policy: str = option("fcfs", "Order of requests.", choices=SCHEDULING_POLICIES)
    enable_chunked_prefill: bool = option(
        True, "Splits long prompts over steps. Off: a prompt runs whole, so the token budget must hold max-model-len."
    )
    max_num_partial_prefills: int = option(
        1, "Prompts that may be computed in part at the same time; a further one waits until one of them is complete.",
        minimum=1,
    )  # fmt: skip
    max_long_partial_prefills: int = option(
        1, "Prompts longer than long-prefill-token-threshold among them. Shorter prompts pass longer ones by.",
        minimum=1,
    )  # fmt: skip
    long_prefill_token_threshold: int = option(
        0, "A prompt with more tokens than this left is long: it computes only so many in a step. 0: none is long.",
        minimum=0,
    )  # fmt: skip
    async_scheduling: bool = option(
        True, "Plans the next step while one runs, where steps run on their own: on a GPU, and in the processes of mp."
    )
    max_waiting_requests: int = option(4096, "Requests that may wait; more are refused as overload.", minimum=1)
