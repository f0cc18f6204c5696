"""How a layer transforms its heads before attention, in combinations that no family has."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from engine_svc.attention.base import AttentionShape, Prepared
from engine_svc.attention.reference import ReferenceBackend
from engine_svc.layers.context import LayerContext
from engine_svc.layers.parameter import LoadedParameter
from engine_svc.models.attention import Attention, LayerCache, StepInputs
from engine_svc.models.config import Temperature
from engine_svc.models.llama import config_of
from engine_svc.ops.plain import PlainOps
from engine_svc.parallel.group import ParallelGroups
from engine_svc.quantization.unquantized import Unquantized

CPU, TOKENS, HEADS, KV_HEADS, HEAD_DIM = torch.device("cpu"), 5, 4, 2, 8
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip


class Seen(ReferenceBackend):
    """A backend that records what it would attend with."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *where: Any) -> torch.Tensor:
        self.query, self.key, self.value = query, key, value
        return query


def root_mean_square(heads: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + 1e-6) * weight


@pytest.mark.parametrize("norm", ["none", "head", "rotated"])
def test_queries_that_are_not_rotated_are_normed_and_then_scaled(norm: Any) -> None:
    config = dataclasses.replace(
        config_of(CONFIG), qk_norm=norm, no_rope_layers=frozenset({0}), temperature=Temperature(2, 0.5)
    )
    context = LayerContext(ParallelGroups(), torch.float32, CPU, PlainOps(), Unquantized(torch.float32))
    layer = Attention(config, context, 0)
    parameters = dict(layer.named_parameters())
    torch.manual_seed(0)
    for parameter in parameters.values():
        assert isinstance(parameter, LoadedParameter)
        parameter.allocate()
        torch.nn.init.normal_(parameter)
    hidden, scales = torch.randn(TOKENS, 32), torch.rand(TOKENS, 1) + 1
    backend = Seen(AttentionShape(HEADS, KV_HEADS, HEAD_DIM, 16, torch.float32, CPU))
    rotary = torch.randn(TOKENS, 2, HEAD_DIM // 2)
    nowhere: Any = Prepared
    qkv = (hidden @ parameters["qkv_proj.weight"].T).view(TOKENS, -1, HEAD_DIM)
    query, key, value = qkv.split((HEADS, KV_HEADS, KV_HEADS), 1)
    layer.qkv_proj.pack()
    layer.o_proj.pack()
    layer(hidden, LayerCache(torch.empty(0), nowhere), StepInputs(rotary, rotary, backend, scales))
    if norm != "none":
        query, key = (
            root_mean_square(query, parameters["q_norm.weight"]),
            root_mean_square(key, parameters["k_norm.weight"]),
        )
    torch.testing.assert_close(backend.query, query * scales[:, None])
    torch.testing.assert_close(backend.key, key)
    torch.testing.assert_close(backend.value, value)
