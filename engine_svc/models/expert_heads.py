"""Attention whose queries and outputs are projected by experts, of which each token chooses its own (JetMoE)."""

from __future__ import annotations

import dataclasses

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, ReplicatedLinear, RowParallelLinear, qkv_parts
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.layers.split import Part
from engine_svc.models.attention import Attention, LayerCache, StepInputs
from engine_svc.models.attention_heads import layer_heads
from engine_svc.models.config import ModelConfig
from engine_svc.quantization.source import HeldTensor


class ExpertHeadsAttention(Attention):
    """Each chosen expert adds a query to each key-value head; what these find is weighted and projected by it.

    The queries of all experts are computed, and only those that were chosen attend. The output projection likewise has
    inputs for all experts, zero for those that were not chosen. So both are plain matrices, in which all that belongs
    to a key-value head is side by side: ranks divide them by these heads.
    """

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        moe, heads, group = config.moe[index], layer_heads(config, index), context.groups.tensor
        assert moe is not None
        self._experts, self._chosen, self._all_heads = moe.num_experts, moe.experts_per_token, heads.number
        group.divide(heads.number, "key-value heads of attention with experts")
        parts = qkv_parts(group, heads.queries, heads.number, heads.size)
        own = parts["k"]
        parts["q"] = Part(own.first * self._experts, own.count * self._experts, own.total * self._experts)
        plain = dataclasses.replace(context, adapters=None)  # their matrices would have to be put in order, too
        self.qkv_proj = ColumnParallelLinear(config.hidden_size, parts, bias=False, context=plain.at("qkv_proj"))
        self.o_proj = RowParallelLinear(
            parts["q"].total, config.hidden_size, bias=config.output_bias, context=plain.at("o_proj")
        )
        self.choice = ReplicatedLinear(config.hidden_size, self._experts, context=context.at("choice"))
        for layer in (self.qkv_proj, self.o_proj):
            for parameter in layer.parameters():
                if isinstance(parameter, LoadedParameter):
                    self._put_in_order(parameter, are_several=layer is self.qkv_proj)

    def forward(self, hidden: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """See Attention.forward."""
        projected = self.qkv_proj(hidden).unflatten(1, (-1, self._head_dim))
        of_all, keys_and_values = projected.split((self._kv_heads * self._experts, 2 * self._kv_heads), dim=1)
        worths, experts = self.choice(hidden).topk(self._chosen, dim=1)
        queries = of_all.unflatten(1, (self._kv_heads, -1)).gather(2, self._places(experts)).flatten(1, 2)
        found = self._attend(torch.cat((queries, keys_and_values), dim=1), cache, step)
        if step.output_rows is not None:
            worths, experts = worths[step.output_rows], experts[step.output_rows]
        weights = worths.softmax(1).to(found.dtype)[:, None, :, None]
        weighted = found.view(len(found), self._kv_heads, self._chosen, self._head_dim) * weights
        spread = found.new_zeros((len(found), self._kv_heads, self._experts, self._head_dim))
        return self.o_proj(spread.scatter_(2, self._places(experts), weighted).flatten(1))

    def _places(self, experts: torch.Tensor) -> torch.Tensor:
        """Where the values of chosen experts [tokens, chosen] are: [tokens, heads, chosen, head_dim]."""
        return experts[:, None, :, None].expand(-1, self._kv_heads, -1, self._head_dim)

    def _put_in_order(self, parameter: LoadedParameter, *, are_several: bool) -> None:
        """Lets the parameter also load a matrix for each expert, or keys and values together.

        Args:
            are_several: it is a parameter of queries, keys and values.
        """
        load_plain = parameter.loader

        def load(source: TensorSlice, part: str) -> None:
            if len(source.get_shape()) == 3:
                load_plain(HeldTensor(self._by_heads(source[...], is_query=part == "q")), part)
            elif are_several and not part:
                for name, each in zip("kv", source[...].chunk(2), strict=True):
                    load_plain(HeldTensor(each), name)
            else:
                load_plain(source, part)

        parameter.loader = load

    def _by_heads(self, matrices: torch.Tensor, *, is_query: bool) -> torch.Tensor:
        """One matrix, with the values of each head side by side, of one for each expert.

        Raises:
            ValueError: there are other numbers of experts or values.
        """
        values = self._all_heads * self._head_dim
        if matrices.shape[0] != self._experts or matrices.shape[1 if is_query else 2] != values:
            raise ValueError(
                f"shape {list(matrices.shape)} in the checkpoint does not fit {self._experts} experts and "
                f"{self._all_heads} heads of {self._head_dim} values"
            )
        if is_query:
            return matrices.unflatten(1, (self._all_heads, -1)).transpose(0, 1).flatten(0, 2)
        return matrices.unflatten(2, (self._all_heads, -1)).permute(1, 2, 0, 3).flatten(1)
