"""The shapes of recurrent layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from engine_svc.ops.base import Activation


@dataclass(frozen=True, kw_only=True)
class MambaConfig:
    """Mamba: a selective state space with a rate for each channel and state value, in place of attention."""

    channels: int
    state_size: int
    taps: int  # tokens that the preceding convolution sees
    rank: int  # size of the intermediate vector that time steps are derived from
    bias: bool  # of the input and output projections
    convolution_bias: bool
    norms: Literal["none", "learned", "plain"] = "none"  # of the vectors that time steps, writes and reads are made of
    norm_epsilon: float


@dataclass(frozen=True, kw_only=True)
class Mamba2Config:
    """Mamba 2: a selective state space with a rate for each head."""

    heads: int
    head_dim: int
    groups: int  # groups of heads with the same write and read vectors (B and C)
    state_size: int
    taps: int
    bias: bool
    convolution_bias: bool
    output_bias: bool | None = None  # of the output projection; None means as `bias`
    time_limits: tuple[float, float] = (0.0, math.inf)
    # Norm of the output: after the gate, or before it; "none" means the gate alone.
    norm: Literal["gates_first", "norm_first", "none"] = "gates_first"
    norm_epsilon: float
    # Factors on the projected gates, values, writes, reads and time steps.
    multipliers: tuple[float, float, float, float, float] = (1.0,) * 5


@dataclass(frozen=True, kw_only=True)
class DeltaNetConfig:
    """Linear attention whose states decay and are corrected by the error of what they recall (gated delta rule)."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    norm_epsilon: float
    # Layout of checkpoints. Headwise: everything that belongs to a key head is side by side. Apart: queries, keys and
    # values are separate. Kimi: the same, and each value of a key has its own time step. Bounded: like Kimi, but
    # decays have a lower bound.
    form: Literal["joined", "headwise", "apart", "kimi", "bounded"]
    strongest: float = 1.0  # see DeltaParameters
    lower_bound: float = 0.0  # of the logarithm of a step's decay, if it is bounded


@dataclass(frozen=True, kw_only=True)
class ShortConvolutionConfig:
    """A short convolution between two gates."""

    taps: int
    bias: bool  # of the projections and the convolution


@dataclass(frozen=True, kw_only=True)
class LightningConfig:
    """Linear attention whose states decay at a fixed, not learned, rate for each head."""

    heads: int
    head_dim: int
    pace: float  # this layer's factor on the heads' rates


@dataclass(frozen=True, kw_only=True)
class GatedUnitsConfig:
    """Gated linear recurrent units (Griffin), after a convolution, multiplied with an activated branch."""

    channels: int
    heads: int  # the gates of each head are computed from its own channels
    taps: int
    activation: Activation


RecurrentConfig = (
    MambaConfig | Mamba2Config | DeltaNetConfig | ShortConvolutionConfig | LightningConfig | GatedUnitsConfig
)
