"""A feed-forward layer that is a mixture of experts, as in Mixtral (Jiang et al. 2024), Qwen and DeepSeek."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.experts import Experts
from engine_svc.layers.linear import ReplicatedLinear
from engine_svc.models.config import ModelConfig, MoeConfig
from engine_svc.models.expert_choice import ExpertChoice
from engine_svc.models.mlp import MLP
from quire.errors import StartupError


class SparseMLP(torch.nn.Module):
    """A router picks each token's experts; one more expert may be shared by all tokens."""

    def __init__(self, config: ModelConfig, moe: MoeConfig, context: LayerContext) -> None:
        """
        Raises:
            StartupError: the experts' activation is not SiLU.
        """
        super().__init__()
        if config.activation != "silu":
            raise StartupError(f"Mixtures of experts with the activation {config.activation!r} are not supported.")
        self._ops = context.ops
        self.gate = ExpertChoice(config.hidden_size, moe, context=context.at("gate"))
        self.experts = Experts(moe.num_experts, config.hidden_size, moe.expert_size, context=context.at("experts"))
        self.shared_expert: MLP | None = None
        self.shared_expert_gate: ReplicatedLinear | None = None
        if moe.shared_size:
            self.shared_expert = MLP(
                config.hidden_size,
                moe.shared_size,
                activation="silu",
                bias=False,
                context=context.at("shared_expert"),
            )
        if moe.shared_gate:
            self.shared_expert_gate = ReplicatedLinear(config.hidden_size, 1, context=context.at("shared_expert_gate"))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]."""
        output = self.experts(hidden, *self.gate.choose(hidden))
        if self.shared_expert is None:
            return output
        gates = None if self.shared_expert_gate is None else self.shared_expert_gate(hidden)
        return self._ops.add(output, self.shared_expert(hidden), gates)
