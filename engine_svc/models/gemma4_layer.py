"""A layer of Gemma 4 (Google 2026)."""

from __future__ import annotations

import functools

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import whole_linear
from engine_svc.layers.norm import RMSNorm
from engine_svc.layers.parameter import LoadedParameter
from engine_svc.models.attention import AnyLayerCache, StepInputs
from engine_svc.models.config import ModelConfig, MoeConfig, fixed_activation
from engine_svc.models.decoder_layer import LayerOutput, SandwichNormLayer, hidden_norm
from engine_svc.models.gemma_config import TokenInputsConfig
from engine_svc.models.moe import SparseMLP


class TokenInput(torch.nn.Module):
    """Adds what a layer knows of its tokens by their ids, through a gate that depends on hidden states."""

    def __init__(self, config: ModelConfig, form: TokenInputsConfig, context: LayerContext) -> None:
        super().__init__()
        self._ops, self._activation = context.ops, fixed_activation(config)
        self.gate = whole_linear(config.hidden_size, form.size, bias=False, context=context.at("gate"))
        self.projection = whole_linear(form.size, config.hidden_size, bias=False, context=context.at("projection"))
        self.norm = hidden_norm(config, context)

    def forward(self, hidden: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Hidden states [tokens, hidden_size] and the layer's inputs [tokens, size] → what to add to the former."""
        both = self._ops.join([self.gate(hidden)[:, None], inputs[:, None]])
        put_out: torch.Tensor = self.norm(self.projection(self._ops.activate_and_multiply(both, self._activation)))
        return put_out


class Mixture(torch.nn.Module):
    """Experts beside the dense feed-forward part, whose router sees hidden states through a norm of its own."""

    def __init__(self, config: ModelConfig, moe: MoeConfig, context: LayerContext) -> None:
        super().__init__()
        size = config.hidden_size
        self.router_norm = RMSNorm(size, config.norm_eps, context=context, factor=size**-0.5)
        self.input_norm, self.output_norm, self.dense_norm = (hidden_norm(config, context) for _ in range(3))
        self.sparse = SparseMLP(config, moe, context)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]."""
        put_out: torch.Tensor = self.output_norm(self.sparse(self.input_norm(hidden), self.router_norm(hidden)))
        return put_out


class Gemma4Layer(SandwichNormLayer):
    """Norms before and after attention and feed-forward, and a learned factor on the layer's sum.

    Some models have experts beside the dense feed-forward part, some add inputs by token id at the end.
    """

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        self._index = index
        moe, form = config.moe[index], config.token_inputs
        self.mixture = Mixture(config, moe, context) if moe else None
        self.token_input = TokenInput(config, form, context.at("token_input")) if form else None
        self.layer_scalar = LoadedParameter((1,), torch.float32, context.device)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """See DecoderLayer.forward."""
        mixed = self._mix(self.input_layernorm(hidden, residual), cache, step)
        residual = step.outputs(self._ops, residual)
        fed = self.mlp(self.pre_feedforward_layernorm(self.post_attention_layernorm(mixed), residual))
        if self.mixture is not None:
            fed = self._ops.add(self.mixture.dense_norm(fed), self.mixture(residual))
        hidden = self.post_feedforward_layernorm(fed)
        if self.token_input is not None:
            assert step.token_inputs is not None
            residual = self._ops.add(residual, hidden)
            inputs = step.outputs(self._ops, step.token_inputs(self._index))
            hidden = self.token_input(residual, inputs)
        if self._factor != 1.0:
            hidden, residual = (self._ops.scale(each, self._factor) for each in (hidden, residual))
        return LayerOutput(hidden, residual)

    @functools.cached_property
    def _factor(self) -> float:
        """The factor on the layer's sum; must not be read before it is loaded."""
        return float(self.layer_scalar)
