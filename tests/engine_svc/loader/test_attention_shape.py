"""The attention backend's shape, by the model and the options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine_svc.loader.attention_shape import attention_shape
from engine_svc.models.attention_heads import layer_kind
from engine_svc.models.registry import config_for
from engine_svc.parallel.group import ParallelGroups
from tests.support.engine_options import engine_options
from tests.support.tiny_models import make_model


@pytest.mark.parametrize(("with_adapters", "expanded_dim"), [(False, 40), (True, 0)])
def test_compressed_attention(tmp_path: Path, with_adapters: bool, expanded_dim: int) -> None:
    """One vector of 16 and 8 numbers a token; 24 and 16 of each head's key and value, but not with adapters."""
    folder = make_model(tmp_path, "deepseek-v2", num_hidden_layers=1)
    config = config_for(json.loads((folder / "config.json").read_text()))
    shape = attention_shape(
        config, engine_options(enable_lora=with_adapters), ParallelGroups(), torch.float32, torch.device("cpu"),
        layer_kind(config, 0),
    )  # fmt: skip
    assert (shape.num_kv_heads, shape.head_dim, shape.keys_are_values) == (1, 24, True)
    assert shape.expanded_dim == expanded_dim
