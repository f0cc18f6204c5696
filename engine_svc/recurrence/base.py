"""The contract of the operations of recurrent layers.

Such a layer keeps a state for each sequence, of the same size for any length of sequence. Unlike cached keys and
values, it is the state after one token only. So that drafted tokens can be undone, the states after each of them may be
kept in different slots.

Where an implementation is batch-invariant, tokens are processed one after the other, with the same arithmetic alone or
among others, so it does not matter how a prompt is split. Others may compute several tokens of a prompt together.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch

from quire.bounds import MAX_SPECULATIVE_TOKENS

MOST_TAPS = 16  # of a convolution
MOST_TARGETS = 1 + MAX_SPECULATIVE_TOKENS


@dataclass(frozen=True)
class StateShape:
    """The shape of one layer's state of a sequence, on one rank."""

    convolution: tuple[int, int]  # number of past inputs that the convolution still needs, and channels
    recurrent: tuple[int, ...]


@dataclass(frozen=True)
class StateForm:
    """The shapes and dtypes of the states of a model's layers."""

    shapes: Mapping[int, StateShape]  # of each recurrent layer
    convolution_dtype: torch.dtype
    recurrent_dtype: torch.dtype

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes of a sequence's states on one rank."""
        return sum(
            math.prod(shape.convolution) * self.convolution_dtype.itemsize
            + math.prod(shape.recurrent) * self.recurrent_dtype.itemsize
            for shape in self.shapes.values()
        )


@dataclass(frozen=True)
class StateMetadata:
    """Which tokens of a flat batch belong to which sequence, and where the sequences' states are."""

    query_start_loc: torch.Tensor  # int32 [num_seqs + 1], prefix sums of the numbers of new tokens
    slots: torch.Tensor  # int64 [num_seqs]
    is_fresh: torch.Tensor  # bool [num_seqs]: nothing is computed yet, and the slot has another sequence's old state
    query_lens_host: list[int]
    # int64 [tokens]: the slot that the state after each token goes to; -1 for none, but the last token of a sequence
    # has one. Sequences of more than MOST_TARGETS tokens have only that one, and it is their own slot.
    # None: a sequence's state goes to its own slot after its last token.
    targets: torch.Tensor | None = None


class LayerState(NamedTuple):
    """A layer's states of all sequences, and which sequences are in the current batch."""

    convolution: torch.Tensor  # [slots, inputs, channels]
    recurrent: torch.Tensor  # [slots, ...]
    sequences: StateMetadata


@dataclass(frozen=True, eq=False)
class Convolution:
    """A causal filter for each channel."""

    weight: torch.Tensor  # float32 [taps, channels], the token's own last
    bias: torch.Tensor | None  # float32 [channels]
    activates: bool = True  # applies SiLU to the output


class ScanInputs(NamedTuple):
    """The inputs of a selective state space model (Gu and Dao 2023) for each token. Any strides between tokens."""

    hidden: torch.Tensor  # [tokens, channels]
    time_steps: torch.Tensor  # before the softplus: [tokens, channels], or with heads [tokens, heads]
    writes: torch.Tensor  # B of the paper: [tokens, state_size], or with heads [tokens, groups * state_size]
    reads: torch.Tensor  # C of the paper, same shape


@dataclass(frozen=True, eq=False)
class ScanParameters:
    """The parameters of a selective state space model, all float32."""

    rates: torch.Tensor  # A of the paper, negative: [state_size, channels], or with heads [heads]
    skip: torch.Tensor  # D: [channels] or [heads]
    time_bias: torch.Tensor | None = None  # [heads]
    time_limits: tuple[float, float] = (0.0, float("inf"))  # that heads' time steps are clamped to


class UnitInputs(NamedTuple):
    """The inputs of a real-gated linear recurrent unit (De et al. 2024) for each token. Any strides between tokens."""

    hidden: torch.Tensor  # [tokens, channels]
    input_gates: torch.Tensor  # before bias and sigmoid, same shape
    decay_gates: torch.Tensor  # likewise


@dataclass(frozen=True, eq=False)
class UnitParameters:
    """The parameters of a real-gated linear recurrent unit, all float32 [channels]."""

    rates: torch.Tensor  # negative
    input_bias: torch.Tensor
    decay_bias: torch.Tensor


class DeltaInputs(NamedTuple):
    """The inputs of the gated delta rule (Yang, Kautz, Hatamizadeh 2024) for each token. Any strides between tokens.

    With a time step for each value of a key, it is Kimi Delta Attention (Kimi Team 2025).
    """

    query: torch.Tensor  # [tokens, key heads * key_dim]
    key: torch.Tensor  # same shape
    value: torch.Tensor  # [tokens, value heads * value_dim]
    time_steps: torch.Tensor  # before the softplus: [tokens, value heads], or [tokens, value heads * key_dim]
    strengths: torch.Tensor  # before the sigmoid: [tokens, value heads]


@dataclass(frozen=True, eq=False)
class DeltaParameters:
    """The parameters of the gated delta rule."""

    rates: torch.Tensor  # float32 [value heads], negative
    time_bias: torch.Tensor  # float32, for each of a token's time steps
    strongest: float = 1.0  # factor on the strengths' sigmoids


@dataclass(frozen=True, eq=False)
class GatedNorm:
    """RMS norms of groups of values, combined with a gate."""

    weight: torch.Tensor  # [size], of all groups
    groups: int
    epsilon: float
    gates_first: bool  # values are gated before the norm, else after it
    gate: Literal["silu", "sigmoid"] = "silu"


class Recurrence(ABC):
    """The recurrent operations of a rank. They update the states of the batch's sequences in place."""

    # A token's result depends on its sequence alone; see Ops.
    batch_invariant: ClassVar[bool] = False

    @abstractmethod
    def convolve(self, inputs: torch.Tensor, convolution: Convolution, state: LayerState) -> torch.Tensor:
        """Applies each channel's causal filter over its sequence, then SiLU if the convolution has it.

        Inputs are rounded to the state's dtype first.

        Args:
            inputs: [tokens, channels], any stride between tokens.

        Returns:
            [tokens, channels]
        """

    @abstractmethod
    def gated_convolve(self, inputs: torch.Tensor, convolution: Convolution, state: LayerState) -> torch.Tensor:
        """The short convolution of LFM2: inputs and outputs are multiplied by gates; no activation.

        Args:
            inputs: [tokens, 3 * channels]: input gates, output gates, values; any stride between tokens.

        Returns:
            [tokens, channels]
        """

    @abstractmethod
    def scan_channels(
        self, inputs: ScanInputs, gates: torch.Tensor, parameters: ScanParameters, state: LayerState
    ) -> torch.Tensor:
        """Mamba's selective scan with states [slots, state_size, channels], times SiLU of the gates.

        Args:
            gates: [tokens, channels], any stride between tokens.

        Returns:
            [tokens, channels]
        """

    @abstractmethod
    def gated_units(self, inputs: UnitInputs, parameters: UnitParameters, state: LayerState) -> torch.Tensor:
        """The recurrence of Griffin, with states [slots, channels].

        States decay by a = exp(rate * decay gate), and the gated input times sqrt(1 - a * a) is added, which keeps
        their magnitude. A sequence's first token is added in full.

        Returns:
            [tokens, channels]
        """

    @abstractmethod
    def scan_heads(self, inputs: ScanInputs, parameters: ScanParameters, state: LayerState) -> torch.Tensor:
        """Mamba 2's selective scan with states [slots, heads, state_size, head_dim].

        Returns:
            [tokens, heads * head_dim]
        """

    @abstractmethod
    def delta_rule(self, inputs: DeltaInputs, parameters: DeltaParameters, state: LayerState) -> torch.Tensor:
        """The gated delta rule: states decay, are updated to map keys to values, and are read by queries.

        States are [slots, value heads, key_dim, value_dim]. Queries and keys are normalized to length 1 first. Each key
        head serves the same number of value heads.

        Returns:
            [tokens, value heads * value_dim]
        """

    @abstractmethod
    def gated_norm(self, hidden: torch.Tensor, gates: torch.Tensor, norm: GatedNorm) -> torch.Tensor:
        """Normalizes and gates: both [tokens, size] with any strides between tokens → [tokens, size]."""
