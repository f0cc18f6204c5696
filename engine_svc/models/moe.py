"""A feed-forward layer that is a mixture of experts, as in Mixtral (Jiang et al. 2024), Qwen and DeepSeek."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.experts import Experts, ExpertsShape
from engine_svc.layers.linear import ColumnParallelLinear, ReplicatedLinear, whole_linear
from engine_svc.layers.norm import RMSNorm
from engine_svc.layers.parameter import LoadedParameter
from engine_svc.models.config import ModelConfig, MoeConfig, fixed_activation
from engine_svc.models.expert_choice import ExpertChoice, TableChoice
from engine_svc.models.mlp import MLP
from engine_svc.ops.base import ExpertsForm


def experts_of(model: object) -> list[Experts]:
    """The experts of all layers of a model, in order; empty if it has none."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return [module for module in modules if isinstance(module, Experts)]


class SparseMLP(torch.nn.Module):
    """A mixture of experts: a router picks each token's experts; one more expert may be shared by all tokens."""

    def __init__(self, config: ModelConfig, moe: MoeConfig, context: LayerContext) -> None:
        super().__init__()
        self._ops = context.ops
        self._first_idle = moe.num_experts if moe.idle_experts else None
        choice = TableChoice if moe.table_tokens else ExpertChoice
        self.gate = choice(config.hidden_size, moe, context=context.at("gate"))
        form = ExpertsForm(
            moe.activation or fixed_activation(config), weighs_inputs=moe.weighs_inputs, is_gated=moe.is_gated
        )
        size, latent = config.hidden_size, moe.latent_size
        shape = ExpertsShape(
            moe.num_experts, latent or size, moe.experts_per_token, moe.expert_size, moe.expert_bias, moe.fused
        )
        self.experts = Experts(shape, form, context=context.at("experts"))
        self.fc1_latent_proj: ColumnParallelLinear | None = None
        self.fc2_latent_proj: ColumnParallelLinear | None = None
        if latent:
            self.fc1_latent_proj = whole_linear(
                size, latent, bias=config.mlp_bias, context=context.at("fc1_latent_proj")
            )
            self.fc2_latent_proj = whole_linear(
                latent, size, bias=config.mlp_bias, context=context.at("fc2_latent_proj")
            )
        self.shared_expert: MLP | None = None
        self.shared_expert_gate: ReplicatedLinear | None = None
        if moe.shared_size:
            self.shared_expert = MLP(
                config.hidden_size,
                moe.shared_size,
                activation=moe.shared_activation or fixed_activation(config),
                bias=config.mlp_bias,
                context=context.at("shared_expert"),
                is_gated=moe.is_gated,
                multipliers=(1.0, moe.shared_scale),
            )
        if moe.shared_gate:
            self.shared_expert_gate = ReplicatedLinear(config.hidden_size, 1, context=context.at("shared_expert_gate"))
        self.bias = LoadedParameter((size,), context.dtype, context.device) if moe.output_bias else None
        self.post_mlp_layernorm: RMSNorm | None = None
        if moe.output_norm:
            self.post_mlp_layernorm = RMSNorm(size, config.norm_eps, context=context)

    def forward(
        self, hidden: torch.Tensor, routed: torch.Tensor | None = None, token_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size].

        Args:
            routed: what the router sees, in the same shape; None means `hidden`.
            token_ids: int64 [tokens], needed only if a table has the experts of each.
        """
        inputs = hidden if self.fc1_latent_proj is None else self.fc1_latent_proj(hidden)
        weights, expert_ids = self.gate.choose(hidden if routed is None else routed, token_ids)
        if self._first_idle is None:
            output = self.experts(inputs, weights, expert_ids)
        else:
            output = self._with_idle(inputs, weights, expert_ids, self._first_idle)
        output = output if self.fc2_latent_proj is None else self.fc2_latent_proj(output)
        if self.shared_expert is not None:
            gates = None if self.shared_expert_gate is None else self.shared_expert_gate(hidden)
            output = self._ops.add(output, self.shared_expert(hidden), gates)
        output = output if self.bias is None else output + self.bias
        return output if self.post_mlp_layernorm is None else self.post_mlp_layernorm(output)

    def _with_idle(
        self, inputs: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor, first: int
    ) -> torch.Tensor:
        """The weighted sum of the outputs of experts, of which those from `first` on return their inputs."""
        is_idle = expert_ids >= first
        output = self.experts(inputs, weights, expert_ids.masked_fill(is_idle, -1))
        return output + inputs * (weights * is_idle).sum(1, keepdim=True).to(inputs.dtype)
