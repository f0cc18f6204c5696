"""Batches of sequences for the operations of recurrent layers, and reference results in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine_svc.recurrence.base import (
    Convolution,
    DeltaInputs,
    DeltaParameters,
    LayerState,
    Recurrence,
    ScanInputs,
    ScanParameters,
    StateMetadata,
    UnitInputs,
    UnitParameters,
)

SLOTS = 7


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random values on the default device, the same numbers on every device."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), device="cpu")
    return values.to(torch.get_default_device(), dtype)


@dataclass(frozen=True)
class Part:
    """Tokens of one sequence that go in together."""

    slot: int
    tokens: torch.Tensor  # [tokens, size]
    is_fresh: bool = True
    targets: Sequence[
        int
    ] = ()  # slots of the states after the last tokens, if those of any part have slots of their own


def batch(parts: Sequence[Part]) -> tuple[torch.Tensor, StateMetadata]:
    """The parts' tokens concatenated, as columns of a wider tensor; and the metadata of their sequences."""
    tokens = torch.cat([part.tokens for part in parts])
    wider = torch.full((len(tokens), tokens.shape[1] + 5), torch.nan, dtype=tokens.dtype)
    wider[:, 2:-3] = tokens
    lengths = [len(part.tokens) for part in parts]
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    slots = torch.tensor([part.slot for part in parts])
    fresh = torch.tensor([part.is_fresh for part in parts])
    targets = None
    if any(part.targets for part in parts):
        kept = [[-1] * (len(part.tokens) - len(part.targets)) + [*part.targets] for part in parts]
        targets = torch.tensor([target for part in kept for target in part])
    return wider[:, 2:-3], StateMetadata(starts, slots, fresh, lengths, targets)


@dataclass(frozen=True)
class Operation:
    """An operation with its parameters; a token's values are all of the operation's inputs side by side."""

    name: str
    size: int  # values of a token
    convolution: tuple[int, ...]  # shapes of the states
    recurrent: tuple[int, ...]
    run: Callable[[Recurrence, torch.Tensor, LayerState], torch.Tensor]
    # The reference result for tokens [tokens, size] of one sequence, in float64.
    expected: Callable[[torch.Tensor], torch.Tensor]

    def states(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """States of slots that earlier sequences have left, filled with NaN."""
        shapes = (SLOTS, *self.convolution), (SLOTS, *self.recurrent)
        return torch.full(shapes[0], torch.nan, dtype=dtype), torch.full(shapes[1], torch.nan, dtype=dtype)

    def __call__(
        self, recurrence: Recurrence, states: tuple[torch.Tensor, torch.Tensor], parts: Sequence[Part]
    ) -> list[torch.Tensor]:
        """The outputs of each part."""
        tokens, sequences = batch(parts)
        output = self.run(recurrence, tokens, LayerState(*states, sequences))
        return list(output.split(sequences.query_lens_host))


def convolution(bias: bool, is_gated: bool = False, activates: bool = True) -> Operation:
    channels, taps = 37, 4
    form = Convolution(normal(taps, channels, seed=1), normal(channels, seed=2) if bias else None, activates)

    def run(recurrence: Recurrence, tokens: torch.Tensor, state: LayerState) -> torch.Tensor:
        return (recurrence.gated_convolve if is_gated else recurrence.convolve)(tokens, form, state)

    def filtered(tokens: torch.Tensor) -> torch.Tensor:
        padded = F.pad(tokens, (0, 0, taps - 1, 0))
        found = torch.stack([(padded[time : time + taps] * form.weight.double()).sum(0) for time in range(len(tokens))])
        return found if form.bias is None else found + form.bias.double()

    def expected(tokens: torch.Tensor) -> torch.Tensor:
        if not is_gated:
            return F.silu(filtered(tokens)) if activates else filtered(tokens)
        before, behind, values = tokens.chunk(3, dim=-1)
        return behind * filtered(before * values)

    kind = "gated-" if is_gated else "" if activates else "plain-"
    name = f"{kind}convolution-{'with' if bias else 'without'}-bias"
    return Operation(name, (3 if is_gated else 1) * channels, (taps - 1, channels), (1,), run, expected)


def gated_units() -> Operation:
    channels = 300
    parameters = UnitParameters(-normal(channels, seed=1).exp(), normal(channels, seed=2), normal(channels, seed=3))

    def run(recurrence: Recurrence, tokens: torch.Tensor, state: LayerState) -> torch.Tensor:
        return recurrence.gated_units(UnitInputs(*tokens.chunk(3, dim=-1)), parameters, state)

    def expected(tokens: torch.Tensor) -> torch.Tensor:
        hidden, inputs, decays = tokens.chunk(3, dim=-1)
        rate = (decays + parameters.decay_bias.double()).sigmoid() * parameters.rates.double()
        value = hidden * (inputs + parameters.input_bias.double()).sigmoid()
        found = [value[0]]
        for time in range(1, len(tokens)):
            found.append(rate[time].exp() * found[-1] + (-torch.expm1(2 * rate[time])).sqrt() * value[time])
        return torch.stack(found)

    return Operation("gated-units", 3 * channels, (1, 1), (channels,), run, expected)


def channels_scan() -> Operation:
    channels, size = 300, 5
    parameters = ScanParameters(-normal(size, channels, seed=1).exp(), normal(channels, seed=2))
    sizes = (channels, channels, size, size, channels)

    def run(recurrence: Recurrence, tokens: torch.Tensor, state: LayerState) -> torch.Tensor:
        *inputs, gates = tokens.split(sizes, dim=-1)
        return recurrence.scan_channels(ScanInputs(*inputs), gates, parameters, state)

    def expected(tokens: torch.Tensor) -> torch.Tensor:
        hidden, steps, writes, reads, gates = tokens.split(sizes, dim=-1)
        state, found = torch.zeros(size, channels, dtype=torch.float64), []
        for time in range(len(tokens)):
            step = F.softplus(steps[time])
            state = state * torch.exp(step * parameters.rates.double())
            state = state + step * hidden[time] * writes[time][:, None]
            found.append((state * reads[time][:, None]).sum(0) + parameters.skip.double() * hidden[time])
        return torch.stack(found) * F.silu(gates)

    return Operation("channels", sum(sizes), (1, 1), (size, channels), run, expected)


def heads_scan(dim: int = 70, time_limits: tuple[float, float] = (0.0, float("inf")), bias: bool = True) -> Operation:
    heads, groups, size = 6, 2, 5
    parameters = ScanParameters(
        -normal(heads, seed=1).exp(), normal(heads, seed=2), normal(heads, seed=3) if bias else None, time_limits
    )
    sizes = (heads * dim, heads, groups * size, groups * size)

    def run(recurrence: Recurrence, tokens: torch.Tensor, state: LayerState) -> torch.Tensor:
        return recurrence.scan_heads(ScanInputs(*tokens.split(sizes, dim=-1)), parameters, state)

    def expected(tokens: torch.Tensor) -> torch.Tensor:
        hidden, steps, writes, reads = tokens.split(sizes, dim=-1)
        state, found = torch.zeros(heads, size, dim, dtype=torch.float64), []
        for time in range(len(tokens)):
            own = hidden[time].view(heads, dim)
            step = F.softplus(steps[time] + (0 if parameters.time_bias is None else parameters.time_bias.double()))
            step = step.clamp(*time_limits)
            write, read = (each[time].view(groups, size).repeat_interleave(3, 0) for each in (writes, reads))
            state = state * torch.exp(step * parameters.rates.double())[:, None, None]
            state = state + torch.einsum("h,hd,hs->hsd", step, own, write)
            found.append(torch.einsum("hsd,hs->hd", state, read) + parameters.skip.double()[:, None] * own)
        return torch.stack(found).flatten(1)

    name = f"heads-of-{dim}{'-bounded' if time_limits[0] else ''}{'' if bias else '-without-bias'}"
    return Operation(name, sum(sizes), (1, 1), (heads, size, dim), run, expected)


def delta_rule(steps_by_key: bool = False, strongest: float = 1.0, dim: int = 70) -> Operation:
    key_heads, heads, size = 2, 6, 12
    steps_of_head = size if steps_by_key else 1
    bias = normal(heads * steps_of_head, seed=2)
    parameters = DeltaParameters(-normal(heads, seed=1).exp(), bias, strongest)
    sizes = (key_heads * size, key_heads * size, heads * dim, heads * steps_of_head, heads)

    def run(recurrence: Recurrence, tokens: torch.Tensor, state: LayerState) -> torch.Tensor:
        return recurrence.delta_rule(DeltaInputs(*tokens.split(sizes, dim=-1)), parameters, state)

    def unit(vectors: torch.Tensor) -> torch.Tensor:
        return vectors / (vectors.square().sum(-1, keepdim=True) + 1e-6).sqrt()

    def expected(tokens: torch.Tensor) -> torch.Tensor:
        queries, keys, values, steps, strengths = tokens.split(sizes, dim=-1)
        state, found = torch.zeros(heads, size, dim, dtype=torch.float64), []
        for time in range(len(tokens)):
            query, key = (unit(each[time].view(-1, size)).repeat_interleave(3, 0) for each in (queries, keys))
            passed = F.softplus(steps[time] + parameters.time_bias.double()).view(heads, -1, 1)
            state = state * torch.exp(parameters.rates.double()[:, None, None] * passed)
            news = values[time].view(heads, dim) - torch.einsum("hsd,hs->hd", state, key)
            state = state + torch.einsum("h,hs,hd->hsd", strongest * strengths[time].sigmoid(), key, news)
            found.append(torch.einsum("hsd,hs->hd", state, query) / size**0.5)
        return torch.stack(found).flatten(1)

    name = f"delta-rule-of-{dim}{'-by-key' if steps_by_key else ''}{'' if strongest == 1 else '-strong'}"
    return Operation(name, sum(sizes), (1, 1), (heads, size, dim), run, expected)


OPERATIONS = (
    convolution(bias=True), convolution(bias=False), convolution(bias=True, is_gated=True),
    convolution(bias=True, activates=False), gated_units(), channels_scan(),
    heads_scan(), heads_scan(64, (0.2, 0.9)), heads_scan(1, bias=False), delta_rule(),
    delta_rule(dim=64), delta_rule(steps_by_key=True, strongest=1.5),
)  # fmt: skip
