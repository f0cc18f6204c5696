"""Alternating updates (Baykal et al. 2023, as in Gemma 3n): hidden states that are several streams.

Each layer computes the first stream only. Before it, all streams are predicted from each other; after it, each is
corrected by what the layer has changed of its prediction. All weights depend on the token. For each stream:

    prediction = stream + sum of all streams, by weights
    next stream = prediction + weight * (the layer's output - prediction of the first stream)

The predictions of the other streams are never computed: streams are mixed once, by the product of both sets of weights.
"""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ReplicatedLinear, whole_linear
from engine_svc.layers.norm import RMSNorm
from engine_svc.layers.parameter import LoadedParameter
from engine_svc.models.attention import AnyLayerCache, StepInputs
from engine_svc.models.config import ModelConfig
from engine_svc.models.decoder_layer import LayerOutput, SandwichNormLayer, hidden_norm
from engine_svc.models.gemma4_layer import TokenInput
from engine_svc.models.gemma_config import AltUpConfig
from engine_svc.models.streams import Mixing, collapsed, mixed

_SMALLEST = 1e-5  # of a mean square that is divided by


class AltUpLayer(SandwichNormLayer):
    """Attention, a low-rank product beside it, and feed-forward; `hidden` and `residual` as in StreamLayer.

    What the layer adds for its tokens by their ids is for all streams but the first.
    """

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        assert config.altup is not None
        assert config.token_inputs is not None
        self._index = index
        self.altup = AltUp(config, config.altup, context.at("altup"))
        self.laurel = Laurel(config, config.altup, context.at("laurel"))
        self.token_input = TokenInput(config, config.token_inputs, context.at("token_input"))

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """See DecoderLayer.forward; all rows are needed."""
        assert step.token_inputs is not None
        active, weights = self.altup.predict(hidden)
        normed = self.input_layernorm(active)
        self._ops.add(active, self.laurel(normed))  # before attention, which may change its input in place
        self._ops.add(active, self.post_attention_layernorm(self._mix(normed, cache, step)))
        self._ops.scale(active, 2**-0.5)
        fed = self.mlp(self.pre_feedforward_layernorm(active))
        self._ops.add(active, self.post_feedforward_layernorm(fed))
        hidden = mixed(hidden, active, self.altup.correct(weights, active))
        streams, scale = hidden.unflatten(1, (weights.shape[1], -1)), self.altup.correct_output_scale
        first = streams[:, 0].contiguous() if scale is None else streams[:, 0] * scale
        streams[:, 1:] += self.token_input(first, step.token_inputs(self._index))[:, None]
        return LayerOutput(hidden, residual)


class AltUp(torch.nn.Module):
    """Says how streams are predicted and corrected."""

    def __init__(self, config: ModelConfig, form: AltUpConfig, context: LayerContext) -> None:
        super().__init__()
        self._ops, self._scale = context.ops, 1 / config.hidden_size
        self.router_norm = hidden_norm(config, context)
        self.modality_router = ReplicatedLinear(config.hidden_size, form.count, context=context.at("modality_router"))
        self.prediction_coefs = LoadedParameter((form.count**2, form.count), torch.float32, context.device)
        self.correction_coefs = LoadedParameter((form.count, form.count), torch.float32, context.device)
        self.correct_output_scale = (
            LoadedParameter((config.hidden_size,), context.dtype, context.device) if form.scales_inputs else None
        )

    def predict(self, streams: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, count * hidden_size] → the layer's input [tokens, hidden_size], and weights for `correct`.

        The weights are float32 [tokens, count, count], of each stream (first) in each prediction (second).
        """
        count = len(self.correction_coefs)
        weights = self._weights(streams[:, : streams.shape[1] // count].contiguous(), self.prediction_coefs)
        weights = weights.unflatten(1, (count, count)).transpose(1, 2)
        weights.diagonal(dim1=1, dim2=2).add_(1)  # of the stream itself
        return collapsed(streams, weights[:, :, 0]), weights

    def correct(self, weights: torch.Tensor, activated: torch.Tensor) -> Mixing:
        """How the streams before the layer become those after it.

        Args:
            activated: [tokens, hidden_size], the layer's output, which is not changed.
        """
        added = self._weights(activated, self.correction_coefs) + 1
        return Mixing(added, weights - weights[:, :, :1] * added[:, None])

    def _weights(self, hidden: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] and float32 [weights, count] → float32 [tokens, weights]."""
        scores = self._ops.scale(self.modality_router(self.router_norm(hidden)), self._scale)
        modalities = self._ops.softcap(scores, 1.0)  # a hyperbolic tangent
        return (modalities[:, None] * coefficients).sum(-1)


class Laurel(torch.nn.Module):
    """A learned augmented residual layer (Menghani et al. 2024): the normed input plus a normed low-rank product."""

    def __init__(self, config: ModelConfig, form: AltUpConfig, context: LayerContext) -> None:
        super().__init__()
        self._ops, size = context.ops, config.hidden_size
        self.linear_left = whole_linear(size, form.rank, bias=False, context=context.at("linear_left"))
        self.linear_right = whole_linear(form.rank, size, bias=False, context=context.at("linear_right"))
        self.post_laurel_norm = hidden_norm(config, context)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]."""
        return self._ops.add(self.post_laurel_norm(self.linear_right(self.linear_left(hidden))), hidden)


class StreamProjections(torch.nn.ModuleList):
    """A projection for each stream but the first."""

    def __init__(self, config: ModelConfig, form: AltUpConfig, context: LayerContext) -> None:
        size = config.hidden_size
        super().__init__(
            whole_linear(size, size, bias=False, context=context.at(str(index))) for index in range(form.count - 1)
        )

    def forward(self, streams: torch.Tensor) -> torch.Tensor:
        """Streams [tokens, count, hidden_size], each after its projection and as long as the first: float32."""
        others = [each(streams[:, index].contiguous()) for index, each in enumerate(self, 1)]
        found = torch.stack([streams[:, 0], *others], dim=1).float()
        squares = found.square().mean(-1, keepdim=True)
        found[:, 1:] *= (squares[:, :1] / squares[:, 1:].clamp(min=_SMALLEST)).sqrt()
        return found


class AltUpInputs(torch.nn.Module):
    """Turns embeddings into streams."""

    def __init__(self, config: ModelConfig, form: AltUpConfig, context: LayerContext) -> None:
        super().__init__()
        self._count = form.count
        self.projections = StreamProjections(config, form, context.at("projections"))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, count * hidden_size]."""
        streams: torch.Tensor = self.projections(hidden[:, None].expand(-1, self._count, -1))
        return streams.to(hidden.dtype).flatten(1)


class AltUpNorm(RMSNorm):
    """The norm after the last layer, of the mean of all streams."""

    def __init__(self, config: ModelConfig, form: AltUpConfig, context: LayerContext) -> None:
        super().__init__(config.hidden_size, config.norm_eps, context=context)
        self._count = form.count
        self.projections = StreamProjections(config, form, context.at("projections"))

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None = None, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[tokens, count * hidden_size] → [tokens, hidden_size]; see RMSNorm.forward. `residual` must be zero."""
        streams: torch.Tensor = self.projections(hidden.unflatten(1, (self._count, -1)))
        return super().forward(streams.mean(dim=1).to(hidden.dtype), None, output)
