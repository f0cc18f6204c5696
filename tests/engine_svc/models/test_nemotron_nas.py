"""Llama Nemotron: Transformers' Llama becomes it with parts that are replaced in the model of reference."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_svc.models.registry import config_for
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.models.test_remote_code import ANSWER, PROMPTS, SAMPLING
from tests.support.exact_answers import check_answers_of
from tests.support.run_engine import run, running_engine, spec_of
from tests.support.tensor_executor import TensorExecutor
from tests.support.tiny_models import load_reference

HIDDEN = 64
NO, LINEAR = {"no_op": True}, {"replace_with_linear": True}
ATTENTION: dict[str, Any] = {"n_heads_in_group": 2, "window_length": None, "sparsify": None}
SMALL, LARGE = {"ffn_mult": 5.1}, {"ffn_mult": None, "intermediate_size": 288}  # the first is rounded up to 256
# Of each layer: attention, feed-forward. The last one begins with what has only the rows that are sampled.
BLOCKS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (ATTENTION, SMALL), (NO, LARGE), (LINEAR, SMALL), (ATTENTION, NO), (NO, NO), (ATTENTION, LINEAR), (NO, LARGE),
]  # fmt: skip


class Linear(torch.nn.Module):
    """In place of a part of the reference."""

    def __init__(self, weight: torch.Tensor, *, is_attention: bool) -> None:
        super().__init__()
        self._weight, self._is_attention = torch.nn.Parameter(weight), is_attention

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> Any:
        found = hidden_states @ self._weight.T
        return (found, None) if self._is_attention else found


@pytest.fixture(scope="module")
def pair(model_folder: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A checkpoint, and the model that it was made of."""
    return _make(model_folder, tmp_path_factory.mktemp("nas"), BLOCKS)


def _make(model_folder: ModelFolder, to: Path, blocks: list[tuple[dict[str, Any], dict[str, Any]]]) -> tuple[Path, Any]:
    """The reference has as many heads of keys and values as of queries, and repeats the checkpoint's."""
    same = model_folder(
        "llama", num_hidden_layers=len(blocks), num_key_value_heads=4, intermediate_size=288, tie_word_embeddings=False,
        initializer_range=0.2,
    )  # fmt: skip
    folder, model = to / "model", copy.deepcopy(load_reference(same))
    shutil.copytree(same, folder)
    tensors, noise = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(1)
    for index, (attention, ffn) in enumerate(blocks):
        path, layer = f"model.layers.{index}", model.model.layers[index]
        for block, name, norm, output, linear in (
            (attention, "self_attn", "input_layernorm", "o_proj", "linear_attn"),
            (ffn, "mlp", "post_attention_layernorm", "down_proj", "linear_mlp"),
        ):
            if block in (NO, LINEAR):
                tensors = {key: each for key, each in tensors.items() if not key.startswith(f"{path}.{name}.")}
            if block is NO:
                getattr(getattr(layer, name), output).weight.data.zero_()
                del tensors[f"{path}.{norm}.weight"]
            elif block is LINEAR:
                weight = torch.randn(HIDDEN, HIDDEN, generator=noise) / 8
                setattr(layer, name, Linear(weight, is_attention=name == "self_attn"))
                tensors[f"{path}.{name}.{linear}.weight"] = weight
        if group := attention.get("n_heads_in_group"):
            for name in ("k_proj", "v_proj"):
                projection = getattr(layer.self_attn, name)
                heads = projection.weight.data.unflatten(0, (4, -1))[::group]
                projection.weight.data = heads.repeat_interleave(group, 0).flatten(0, 1)
                tensors[f"{path}.self_attn.{name}.weight"] = heads.flatten(0, 1).contiguous()
        if ffn is SMALL:
            layer.mlp.down_proj.weight.data[:, 256:] = 0
            tensors[f"{path}.mlp.down_proj.weight"] = layer.mlp.down_proj.weight.data[:, :256].contiguous()
            for name in ("gate_proj", "up_proj"):
                tensors[f"{path}.mlp.{name}.weight"] = tensors[f"{path}.mlp.{name}.weight"][:256].contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(json.loads((same / "config.json").read_text()), blocks)))
    return folder, model


def _config(llama: dict[str, Any], blocks: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    own = {
        "architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "num_key_value_heads": None,
        "intermediate_size": None, "block_configs": [{"attention": each, "ffn": ffn} for each, ffn in blocks],
    }  # fmt: skip
    return llama | own


@pytest.mark.parametrize("budget", [512, 16])
def test_answers(pair: tuple[Path, Any], budget: int) -> None:
    folder, model = pair
    with running_engine(folder, max_num_batched_tokens=budget) as engine:
        found = run(engine, PROMPTS, SAMPLING)
    check_answers_of(model, PROMPTS, found, ANSWER)


@pytest.mark.parametrize("size", [2, 4])  # every other rank has the same head of keys and values, or all have others
def test_tensor_parallel(pair: tuple[Path, Any], size: int) -> None:
    folder, model = pair
    with running_engine(folder, executor=TensorExecutor(), tensor_parallel_size=size, cpu_threads=1) as engine:
        found = run(engine, PROMPTS[:2], SAMPLING)
    check_answers_of(model, PROMPTS[:2], found, ANSWER)


def test_layers_with_different_heads(model_folder: ModelFolder, tmp_path: Path) -> None:
    """Layers with one, two and four heads of keys and values share the cache's memory."""
    one, two, four = ({"n_heads_in_group": group} for group in (4, 2, 1))
    blocks = [(four, SMALL), (one, LARGE), (two, SMALL), (NO, LARGE), (one, SMALL), (two, LARGE)]
    folder, model = _make(model_folder, tmp_path, blocks)
    for options in ({"max_num_batched_tokens": 16}, {"executor": TensorExecutor(), "tensor_parallel_size": 2}):
        with running_engine(folder, **options) as engine:
            found = run(engine, PROMPTS[1:], SAMPLING)
        check_answers_of(model, PROMPTS[1:], found, ANSWER)
    # Three groups of layers, each of which needs no more room than the layer with four heads.
    assert 2 * spec_of(folder).bytes_per_block == spec_of(model_folder("llama", num_hidden_layers=4)).bytes_per_block


def test_only_layers_that_attend_take_cache(pair: tuple[Path, Any], model_folder: ModelFolder) -> None:
    llama = spec_of(model_folder("llama"))
    assert spec_of(pair[0]).bytes_per_block == llama.bytes_per_block  # which has three layers


def test_sizes_of_super_49b(pair: tuple[Path, Any]) -> None:
    """Those of layers that it shares with Llama 3.3 70B, and half of them."""
    config = json.loads((pair[0] / "config.json").read_text()) | {
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "head_dim": None,
    }
    attention = {"n_heads_in_group": 8}
    found = config_for(_config(config, [(attention, {"ffn_mult": 5.25}), (attention, {"ffn_mult": 2.625})]))
    assert (found.num_kv_heads, found.head_dim, found.own_sizes, found.pruned) == (8, 128, {0: 28672, 1: 14336}, {})


@pytest.mark.parametrize(
    ("attention", "ffn", "problem"),
    [
        ({"n_heads_in_group": 0}, SMALL, "invalid value"),
        (ATTENTION | {"window_length": 8}, SMALL, "attention of layer 7 has window_length 8"),
        (ATTENTION, SMALL | {"gated": False}, "ffn of layer 7 has gated False"),
        (ATTENTION, SMALL | {"hidden_act": "gelu"}, "ffn of layer 7 has hidden_act 'gelu'"),
    ],
)
def test_what_is_refused(pair: tuple[Path, Any], attention: Any, ffn: Any, problem: str) -> None:
    config = json.loads((pair[0] / "config.json").read_text())
    with pytest.raises(StartupError, match=problem):
        config_for(_config(config, [*BLOCKS, (attention, ffn)]))
