"""Options for how the ranks of a worker share the experts of a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec

from quire.options.base import option

EXPERT_PLACEMENTS = ("linear", "round_robin")
EXCHANGE_NAMES = ("alltoall", "allgather_reducescatter")

_Count = Annotated[int, msgspec.Meta(ge=1)]
_LIBRARY = "It needs a kernel library that Quire does not include; alltoall sends the same rows over NCCL or Gloo."
_REFUSED_EXCHANGES = {
    "naive": "It broadcasts one rank at a time; use allgather_reducescatter, which moves the same rows at once.",
    **dict.fromkeys(
        (
            "pplx",
            "deepep_high_throughput",
            "deepep_low_latency",
            "deepep_v2",
            "flashinfer_all2allv",
            "flashinfer_nvlink_one_sided",
            "flashinfer_nvlink_two_sided",
            "moonep",
            "mori",
            "mori_high_throughput",
            "mori_low_latency",
            "nixl_ep",
        ),
        _LIBRARY,
    ),
}


class EplbConfig(msgspec.Struct, frozen=True):
    """Keys of --eplb-config."""

    window_size: _Count = 1000  # forward passes over which tokens are counted
    step_interval: _Count = 3000  # forward passes from one rearrangement to the next
    num_redundant_experts: Annotated[int, msgspec.Meta(ge=0)] = 0  # slots per layer in addition to one for each expert
    log_balancedness: bool = False  # logs it for each forward pass


@dataclass(frozen=True)
class ExpertOptions:
    """Mixtures of experts on several ranks."""

    group: ClassVar[str] = "ParallelConfig"

    enable_expert_parallel: bool = option(
        False, "Each rank holds some experts in full instead of a part of every expert. Either way, experts are shared "
        "by the tensor-parallel ranks of all data-parallel ranks.", affects_output=True,
    )  # fmt: skip
    expert_placement_strategy: str = option(
        "linear", "Which experts a rank holds: linear (consecutive ones) or round_robin (every n-th, for n ranks; for "
        "models that choose experts in groups). Other models, and those with redundant experts, are placed linearly.",
        choices=EXPERT_PLACEMENTS, affects_output=True,
    )  # fmt: skip
    all2all_backend: str = option(
        "alltoall", "How tokens reach experts on other data-parallel ranks: alltoall (sent only to the ranks that hold "
        "their experts) or allgather_reducescatter (sent to all; always used for parts of experts).",
        choices=EXCHANGE_NAMES, refused=_REFUSED_EXCHANGES, variables=("VLLM_ALL2ALL_BACKEND",), affects_output=True,
    )  # fmt: skip
    enable_eplb: bool = option(
        False, "Moves experts between ranks to balance the number of tokens that each computes. Needs "
        "--enable-expert-parallel.", affects_output=True,
    )  # fmt: skip
    eplb_config: dict[str, Any] = option(
        {},
        "Settings of --enable-eplb as JSON, or key by key (--eplb-config.step_interval 300). Keys: window_size (number "
        "of forward passes over which tokens are counted: 1000), step_interval (forward passes between rearrangements: "
        "3000), num_redundant_experts (slots per layer in addition to one for each expert: 0), log_balancedness (logs "
        "it for each forward pass).",
        schema=EplbConfig, affects_output=True,
    )  # fmt: skip

    def balancing(self) -> EplbConfig | None:
        """The settings for moving experts between ranks; None if they stay.

        Raises:
            ValueError: options contradict each other, or see EplbConfig, which the command line has checked already.
        """
        config = msgspec.convert(self.eplb_config, EplbConfig)
        if self.enable_eplb and not self.enable_expert_parallel:
            raise ValueError("--enable-eplb moves whole experts: it needs --enable-expert-parallel.")
        if config.num_redundant_experts and not self.enable_eplb:
            raise ValueError("--eplb-config.num_redundant_experts needs --enable-eplb.")
        return config if self.enable_eplb else None
