"""What another checkpoint must have in common with the served one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_svc.loader.checkpoint_form import read_form
from quire.errors import StartupError
from tests.support.engine_options import engine_options
from tests.support.tiny_models import make_model

Weights = dict[str, torch.Tensor]
NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"), "llama")


def difference(folder: Path, other: Path, **options: Any) -> str:
    chosen = engine_options(**options)
    return read_form(folder, chosen).difference(read_form(other, chosen))


def changed(folder: Path, other: Path, change: Callable[[Weights], Any] = bool, **config: Any) -> Path:
    """A copy with other weights or another configuration; a field that is None is left out."""
    shutil.copytree(folder, other)
    weights = load_file(other / "model.safetensors")
    change(weights)
    save_file(weights, other / "model.safetensors")
    fields = json.loads((other / "config.json").read_text()) | config
    fields = {name: value for name, value in fields.items() if value is not None}
    (other / "config.json").write_text(json.dumps(fields))
    return other


def test_other_values_in_any_files_have_the_same_form(folder: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", "llama", initializer_range=0.35, max_shard_size="200KB")
    assert difference(folder, other) == difference(folder, other, model_impl="quire") == ""


def test_what_trainers_write_differently_does_not_matter(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    rope = config["rope_parameters"]["rope_theta"]
    other = changed(
        folder, tmp_path / "other", transformers_version="4.40.0", use_cache=False, torch_dtype="float32", dtype=None,
        rope_parameters=None, rope_theta=rope, eos_token_id=7, _name_or_path="elsewhere",
    )  # fmt: skip
    assert difference(folder, other) == ""
    tied = make_model(tmp_path / "tied", "llama", tie_word_embeddings=True)
    head = {"lm_head.weight": load_file(tied / "model.safetensors")["model.embed_tokens.weight"].clone()}
    assert difference(tied, changed(tied, tmp_path / "head", lambda weights: weights.update(head))) == ""


@pytest.mark.parametrize(
    ("change", "config", "told"),
    [
        (bool, {"architectures": ["MistralForCausalLM"]}, "architectures is ['MistralForCausalLM'], but ['Llama"),
        (bool, {"num_hidden_layers": 2}, "num_layers is 2, but 3 for the served model"),
        (bool, {"rms_norm_eps": 0.5}, "norm_eps is 0.5, but 1e-06"),
        (bool, {"quantization_config": {"bits": 8}}, "quantization_config is {'bits': 8}, but missing"),
        (lambda weights: weights.pop(NORM), {}, f"{NORM} is missing, but F32 [64] in the served checkpoint"),
        (lambda weights: weights.update(a=torch.ones(2)), {}, "a is F32 [2], but missing"),
        (lambda weights: weights.update({NORM: torch.ones(63)}), {}, f"{NORM} is F32 [63], but F32 [64]"),
        (lambda weights: weights.update({NORM: torch.ones(64).half()}), {}, f"{NORM} is F16 [64], but F32 [64]"),
    ],
)  # fmt: skip
def test_the_first_difference_is_told(
    folder: Path, tmp_path: Path, change: Callable[[Weights], Any], config: dict[str, Any], told: str
) -> None:
    assert told in difference(folder, changed(folder, tmp_path / "other", change, **config))


def test_models_of_transformers_are_compared_by_their_whole_configuration(folder: Path, tmp_path: Path) -> None:
    other = changed(folder, tmp_path / "other", hidden_act="gelu", use_cache=False)
    assert difference(folder, other, model_impl="transformers") == (
        "config.json: hidden_act is gelu, but silu for the served model"
    )


@pytest.mark.parametrize("load_format", ["dummy", "pt"])
def test_other_formats_are_refused(folder: Path, tmp_path: Path, load_format: str) -> None:
    other = changed(folder, tmp_path / "other")
    torch.save(load_file(other / "model.safetensors"), other / "pytorch_model.bin")
    with pytest.raises(StartupError, match="only checkpoints in safetensors files"):
        read_form(other, engine_options(load_format=load_format))
