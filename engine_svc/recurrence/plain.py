"""The recurrent operations in plain torch: any device and dtype, and the reference for the other implementations.

The first tokens of all sequences are processed together, then the second ones, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine_svc.recurrence.base import (
    Convolution,
    DeltaInputs,
    DeltaParameters,
    GatedNorm,
    LayerState,
    Recurrence,
    ScanInputs,
    ScanParameters,
    StateMetadata,
    UnitInputs,
    UnitParameters,
)

_NORM_EPSILON = 1e-6  # of queries and keys of the delta rule


class PlainRecurrence(Recurrence):
    """See Recurrence."""

    def convolve(self, inputs: torch.Tensor, convolution: Convolution, state: LayerState) -> torch.Tensor:
        """See Recurrence.convolve."""
        filtered = self._filter(inputs, convolution, state)
        return (F.silu(filtered) if convolution.activates else filtered).to(inputs.dtype)

    def gated_convolve(self, inputs: torch.Tensor, convolution: Convolution, state: LayerState) -> torch.Tensor:
        """See Recurrence.gated_convolve."""
        before, behind, values = inputs.float().chunk(3, dim=-1)
        return (behind * self._filter(before * values, convolution, state)).to(inputs.dtype)

    def _filter(self, inputs: torch.Tensor, convolution: Convolution, state: LayerState) -> torch.Tensor:
        """Applies the filters and updates the state: float32 [tokens, channels]."""
        held, sequences = state.convolution, state.sequences
        before, tokens = held.shape[1], len(inputs)
        # All sequences one after the other, each preceded by its kept inputs.
        starts = sequences.query_start_loc.long()
        owner = torch.searchsorted(starts[1:], torch.arange(tokens, device=inputs.device), right=True)
        rows = torch.arange(tokens, device=inputs.device) + before * (owner + 1)
        edges = starts[:-1] + before * torch.arange(len(sequences.slots), device=inputs.device)
        kept = torch.arange(before, device=inputs.device)
        seen = held.new_empty((tokens + before * len(sequences.slots), inputs.shape[1]))
        seen[edges[:, None] + kept] = _of_sequences(held, sequences)
        seen[rows] = inputs.to(held.dtype)
        if sequences.targets is None:
            ends, slots = starts[1:] - 1, sequences.slots
        else:
            ends = (sequences.targets >= 0).nonzero()[:, 0]
            slots = sequences.targets[ends]
        held[slots] = seen[rows[ends][:, None] + 1 - before + kept]
        wide = seen.float()
        output = sum(wide[rows - before + tap] * weight for tap, weight in enumerate(convolution.weight))
        assert isinstance(output, torch.Tensor)
        return output if convolution.bias is None else output + convolution.bias

    def scan_channels(
        self, inputs: ScanInputs, gates: torch.Tensor, parameters: ScanParameters, state: LayerState
    ) -> torch.Tensor:
        """See Recurrence.scan_channels."""
        hidden, writes, reads = inputs.hidden.float(), inputs.writes.float(), inputs.reads.float()
        steps = F.softplus(inputs.time_steps.float())
        output = torch.empty_like(hidden)
        with _StatesInUse(state) as states:
            for rows, mine in states.over_time():
                time, write = steps[rows, None], writes[rows, :, None]
                mine.mul_(torch.exp(time * parameters.rates)).add_(time * hidden[rows, None] * write)
                output[rows] = (mine * reads[rows, :, None]).sum(1)
        output += hidden * parameters.skip
        return (output * F.silu(gates.float())).to(inputs.hidden.dtype)

    def gated_units(self, inputs: UnitInputs, parameters: UnitParameters, state: LayerState) -> torch.Tensor:
        """See Recurrence.gated_units."""
        decays = torch.exp(parameters.rates * torch.sigmoid(inputs.decay_gates.float() + parameters.decay_bias))
        news = inputs.hidden.float() * torch.sigmoid(inputs.input_gates.float() + parameters.input_bias)
        sequences = state.sequences
        kept = (1 - decays * decays).sqrt()
        first = sequences.query_start_loc[:-1].long()
        kept[first] = kept[first].masked_fill(sequences.is_fresh[:, None], 1.0)
        news *= kept
        output = torch.empty_like(news)
        with _StatesInUse(state) as states:
            for rows, mine in states.over_time():
                mine.mul_(decays[rows]).add_(news[rows])
                output[rows] = mine
        return output.to(inputs.hidden.dtype)

    def scan_heads(self, inputs: ScanInputs, parameters: ScanParameters, state: LayerState) -> torch.Tensor:
        """See Recurrence.scan_heads."""
        _, heads, size, dim = state.recurrent.shape
        hidden = inputs.hidden.float().unflatten(-1, (heads, dim))
        steps = inputs.time_steps.float()
        steps = F.softplus(steps if parameters.time_bias is None else steps + parameters.time_bias)
        steps = steps.clamp(*parameters.time_limits)
        decays, weighed = torch.exp(steps * parameters.rates), hidden * steps[..., None]
        writes, reads = (_for_heads(each.float(), size, heads) for each in (inputs.writes, inputs.reads))
        output = torch.empty_like(hidden)
        with _StatesInUse(state) as states:
            for rows, mine in states.over_time():
                mine.mul_(decays[rows, :, None, None]).add_(writes[rows, :, :, None] * weighed[rows, :, None])
                output[rows] = (mine * reads[rows, :, :, None]).sum(2)
        output += hidden * parameters.skip[:, None]
        return output.flatten(1).to(inputs.hidden.dtype)

    def delta_rule(self, inputs: DeltaInputs, parameters: DeltaParameters, state: LayerState) -> torch.Tensor:
        """See Recurrence.delta_rule."""
        _, heads, size, dim = state.recurrent.shape
        query, key = (_unit(_for_heads(each.float(), size, heads)) for each in (inputs.query, inputs.key))
        query, value = query * size**-0.5, inputs.value.float().unflatten(-1, (heads, dim))
        steps = F.softplus(inputs.time_steps.float() + parameters.time_bias).unflatten(-1, (heads, -1))
        decays = torch.exp(parameters.rates[:, None] * steps)[..., None]
        strengths = inputs.strengths.float().sigmoid() * parameters.strongest
        output = torch.empty_like(value)
        with _StatesInUse(state) as states:
            for rows, mine in states.over_time():
                mine.mul_(decays[rows])
                known = (mine * key[rows, :, :, None]).sum(2)
                news = (value[rows] - known) * strengths[rows, :, None]
                mine.add_(key[rows, :, :, None] * news[:, :, None])
                output[rows] = (mine * query[rows, :, :, None]).sum(2)
        return output.flatten(1).to(inputs.value.dtype)

    def gated_norm(self, hidden: torch.Tensor, gates: torch.Tensor, norm: GatedNorm) -> torch.Tensor:
        """See Recurrence.gated_norm."""
        wide, open_by = hidden.float(), (F.silu if norm.gate == "silu" else torch.sigmoid)(gates.float())
        if norm.gates_first:
            wide = wide * open_by
        grouped = wide.unflatten(-1, (norm.groups, -1))
        grouped = grouped * (grouped.square().mean(-1, keepdim=True) + norm.epsilon).rsqrt()
        output = grouped.flatten(-2) * norm.weight.float()
        return (output if norm.gates_first else output * open_by).to(hidden.dtype)


@dataclass
class _StatesInUse:
    """A context with the recurrent states of the batch's sequences in float32; at its end they are stored."""

    of: LayerState

    def __enter__(self) -> _StatesInUse:
        lengths = self.of.sequences.query_lens_host
        order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
        device = self.of.recurrent.device
        chosen = torch.tensor(order, device=device) if len(set(lengths)) > 1 else slice(None)
        sequences = self.of.sequences
        self._starts = sequences.query_start_loc[:-1][chosen].long()
        self._slots = sequences.slots[chosen]
        # How many sequences have a token at each time: always the first ones, as the longest come first.
        self._counts = [sum(length > time for length in lengths) for time in range(max(lengths))]
        self._held = _of_sequences(self.of.recurrent, sequences)[chosen].float()
        return self

    def __exit__(self, *_: object) -> None:
        if self.of.sequences.targets is None:
            self.of.recurrent[self._slots] = self._held.to(self.of.recurrent.dtype)

    def over_time(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields, for each time, rows of the batch and their sequences' states, which the caller updates in place."""
        stored, targets = self.of.recurrent.dtype, self.of.sequences.targets
        for time, count in enumerate(self._counts):
            mine, rows = self._held[:count], self._starts[:count] + time
            yield rows, mine
            if stored != torch.float32:
                mine.copy_(mine.to(stored))
            if targets is not None:
                kept = targets[rows] >= 0
                self.of.recurrent[targets[rows][kept]] = mine[kept].to(stored)


def _of_sequences(held: torch.Tensor, sequences: StateMetadata) -> torch.Tensor:
    """The states of the batch's sequences; zeros for fresh ones, whose slots hold old data."""
    fresh = sequences.is_fresh.view(-1, *[1] * (held.dim() - 1))
    return held[sequences.slots].masked_fill_(fresh, 0)


def _for_heads(values: torch.Tensor, size: int, heads: int) -> torch.Tensor:
    """[tokens, groups * size] → [tokens, heads, size]: neighboring heads share a group."""
    grouped = values.unflatten(-1, (-1, size))
    return grouped.repeat_interleave(heads // grouped.shape[1], dim=1)


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    return vectors * (vectors.square().sum(-1, keepdim=True) + _NORM_EPSILON).rsqrt()
