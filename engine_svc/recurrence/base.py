"""The contract of the operations of recurrent layers.

Such a layer keeps a state of each sequence, of the same size however long the sequence is. Unlike cached keys and
values it is of the last token computed, and of no other: what has been computed cannot be taken back, nor shared by
sequences that begin alike.

Tokens go in one after the other, by the same arithmetic alone and among many: how a prompt is cut does not matter.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch


@dataclass(frozen=True)
class StateShape:
    """What one layer keeps of each sequence, on one rank."""

    convolution: tuple[int, int]  # inputs of tokens that its convolution still sees, and their channels
    recurrent: tuple[int, ...]


@dataclass(frozen=True)
class StateForm:
    """What the layers of a model keep, in which types."""

    shapes: Mapping[int, StateShape]  # of each recurrent layer
    convolution_dtype: torch.dtype
    recurrent_dtype: torch.dtype

    @property
    def bytes_per_sequence(self) -> int:
        """On one rank."""
        return sum(
            math.prod(shape.convolution) * self.convolution_dtype.itemsize
            + math.prod(shape.recurrent) * self.recurrent_dtype.itemsize
            for shape in self.shapes.values()
        )


@dataclass(frozen=True)
class StateMetadata:
    """Which tokens of a flat batch belong to which sequence, and where its states are."""

    query_start_loc: torch.Tensor  # int32 [num_seqs + 1], prefix sums of the new tokens
    slots: torch.Tensor  # int64 [num_seqs]
    is_fresh: torch.Tensor  # bool [num_seqs]: nothing of it is computed yet, and its slot holds what another has left
    query_lens_host: list[int]


class LayerState(NamedTuple):
    """What a layer keeps of all sequences, and which of them compute now."""

    convolution: torch.Tensor  # [slots, inputs, channels]
    recurrent: torch.Tensor  # [slots, ...]
    sequences: StateMetadata


@dataclass(frozen=True, eq=False)
class Convolution:
    """A filter for each channel."""

    weight: torch.Tensor  # float32 [taps, channels], the token's own last
    bias: torch.Tensor | None  # float32 [channels]
    activates: bool = True  # SiLU of what comes out


class ScanInputs(NamedTuple):
    """What a selective state space (Gu and Dao 2023) is given of each token. Any strides between tokens."""

    hidden: torch.Tensor  # [tokens, channels]
    time_steps: torch.Tensor  # before the softplus: [tokens, channels], or with heads [tokens, heads]
    writes: torch.Tensor  # B of the paper: [tokens, state_size], or with heads [tokens, groups * state_size]
    reads: torch.Tensor  # C, of the same shape


@dataclass(frozen=True, eq=False)
class ScanParameters:
    """What is the same for all tokens; all float32."""

    rates: torch.Tensor  # A of the paper, negative: [state_size, channels], or with heads [heads]
    skip: torch.Tensor  # D: [channels] or [heads]
    time_bias: torch.Tensor | None = None  # [heads]
    time_limits: tuple[float, float] = (0.0, float("inf"))  # of the steps of heads


class UnitInputs(NamedTuple):
    """What a real-gated linear recurrent unit (De et al. 2024) is given of each token. Any strides between tokens."""

    hidden: torch.Tensor  # [tokens, channels]
    input_gates: torch.Tensor  # before their bias and the sigmoid, of the same shape
    decay_gates: torch.Tensor  # the same


@dataclass(frozen=True, eq=False)
class UnitParameters:
    """What is the same for all tokens; all float32 [channels]."""

    rates: torch.Tensor  # negative
    input_bias: torch.Tensor
    decay_bias: torch.Tensor


class DeltaInputs(NamedTuple):
    """What the gated delta rule (Yang, Kautz, Hatamizadeh 2024) is given of each token. Any strides between tokens.

    With a time step for each value of a key it is Kimi's (Kimi Team 2025).
    """

    query: torch.Tensor  # [tokens, key heads * key_dim]
    key: torch.Tensor  # the same
    value: torch.Tensor  # [tokens, value heads * value_dim]
    time_steps: torch.Tensor  # before the softplus: [tokens, value heads], or [tokens, value heads * key_dim]
    strengths: torch.Tensor  # before the sigmoid: [tokens, value heads]


@dataclass(frozen=True, eq=False)
class DeltaParameters:
    """What is the same for all tokens."""

    rates: torch.Tensor  # float32 [value heads], negative
    time_bias: torch.Tensor  # float32, for each of a token's time steps
    strongest: float = 1.0  # what the strengths' sigmoids are times


@dataclass(frozen=True, eq=False)
class GatedNorm:
    """Root mean square norms of groups of values, beside a gate."""

    weight: torch.Tensor  # [size], of all groups
    groups: int
    epsilon: float
    gates_first: bool  # what is normalised has been through the gate, or goes through it then
    gate: Literal["silu", "sigmoid"] = "silu"


class Recurrence(ABC):
    """One instance per rank. States are changed in place, those of the sequences that compute."""

    # What a token comes to depends on its sequence alone; see Ops.
    batch_invariant: ClassVar[bool] = False

    @abstractmethod
    def convolve(self, inputs: torch.Tensor, convolution: Convolution, state: LayerState) -> torch.Tensor:
        """Each channel's filter over its sequence, then SiLU, if it activates.

        Inputs count as far as the type of the state holds them.

        Args:
            inputs: [tokens, channels], any stride between tokens.

        Returns:
            [tokens, channels]
        """

    @abstractmethod
    def gated_convolve(self, inputs: torch.Tensor, convolution: Convolution, state: LayerState) -> torch.Tensor:
        """The short convolution of LFM2: what goes in is times a gate, and so is what comes out; no activation.

        Args:
            inputs: [tokens, 3 * channels]: gates before and behind the filters, and values; any stride between tokens.

        Returns:
            [tokens, channels]
        """

    @abstractmethod
    def scan_channels(
        self, inputs: ScanInputs, gates: torch.Tensor, parameters: ScanParameters, state: LayerState
    ) -> torch.Tensor:
        """The selective state space of Mamba, whose states are [slots, state_size, channels], times SiLU of the gates.

        Args:
            gates: [tokens, channels], any stride between tokens.

        Returns:
            [tokens, channels]
        """

    @abstractmethod
    def gated_units(self, inputs: UnitInputs, parameters: UnitParameters, state: LayerState) -> torch.Tensor:
        """The recurrence of Griffin, whose states are [slots, channels]: they fade by exp(rate * gate), and get as much
        of what comes in, through its gate, as keeps their size; all of a sequence's first token.

        Returns:
            [tokens, channels]
        """

    @abstractmethod
    def scan_heads(self, inputs: ScanInputs, parameters: ScanParameters, state: LayerState) -> torch.Tensor:
        """That of Mamba 2, whose states are [slots, heads, state_size, head_dim].

        Returns:
            [tokens, heads * head_dim]
        """

    @abstractmethod
    def delta_rule(self, inputs: DeltaInputs, parameters: DeltaParameters, state: LayerState) -> torch.Tensor:
        """States [slots, value heads, key_dim, value_dim] fade, and learn values by keys; queries read them.

        Queries and keys are made as long as 1 first. Each key head serves the same number of value heads.

        Returns:
            [tokens, value heads * value_dim]
        """

    @abstractmethod
    def gated_norm(self, hidden: torch.Tensor, gates: torch.Tensor, norm: GatedNorm) -> torch.Tensor:
        """Both [tokens, size], any strides between tokens → [tokens, size]."""
