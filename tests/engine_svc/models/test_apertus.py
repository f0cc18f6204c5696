"""Apertus, whose layers learn the numbers of their activation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from engine_svc.layers.xielu import Xielu
from engine_svc.loader.model import load_model
from engine_svc.loader.save import save_sharded_state
from engine_svc.models.registry import config_for
from engine_svc.parallel.group import ParallelGroup, ParallelGroups
from engine_svc.parallel.layout import ParallelLayout
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.engine_options import engine_options
from tests.support.run_engine import random_prompts, run, running_engine, tokens
from tests.support.tensor_executor import TensorExecutor
from tests.support.tiny_models import check_greedy

PROMPTS = random_prompts(1, 17, 40)
NUMBERS = "model.layers.1.mlp.act_fn"
Tensors = dict[str, torch.Tensor]


def check(original: Path, served: Path | None = None, **options: Any) -> None:
    with running_engine(served or original, **options) as engine:
        found = tokens(run(engine, PROMPTS))
    check_greedy(original, PROMPTS, found, len(found[0]))


def copied(original: Path, target: Path, change: Callable[[Tensors], Any], **fields: Any) -> Path:
    """Returns a copy of a model's folder with other tensors and other fields of its configuration."""
    folder = Path(shutil.copytree(original, target))
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    return folder


def activations(folder: Path, **options: Any) -> list[Xielu]:
    alone = ParallelGroup(0, 1)
    groups = ParallelGroups(ParallelLayout(), 0, tensor=alone, expert=alone)
    given = engine_options(cpu_kernels="torch", use_tqdm_on_load=False, **options)
    model = load_model(folder, given, groups, torch.device("cpu")).model
    return [module for module in model.modules() if isinstance(module, Xielu)]


def test_each_layer_has_its_own_numbers(model_folder: ModelFolder, tmp_path: Path) -> None:
    """Also of 16-bit models, they are computed in float32."""

    def round_all(tensors: Tensors) -> None:
        tensors.update({name: tensor.bfloat16() for name, tensor in tensors.items()})

    folder = copied(model_folder("apertus"), tmp_path / "rounded", round_all, dtype="bfloat16")
    stored = load_file(folder / "model.safetensors")
    found = activations(folder)
    for index, layer in enumerate(found):
        rise, fall, slope, limit = (
            stored[f"model.layers.{index}.mlp.act_fn.{name}"].float().squeeze()
            for name in ("alpha_p", "alpha_n", "beta", "eps")
        )
        assert layer.weight.dtype == torch.float32
        assert layer.weight.equal(torch.stack((F.softplus(rise), F.softplus(fall), slope, limit)))
    assert len({tuple(layer.weight.tolist()) for layer in found}) == 3


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_have_all_numbers(model_folder: ModelFolder, ranks: int) -> None:
    check(model_folder("apertus"), executor=TensorExecutor(), tensor_parallel_size=ranks, cpu_threads=1)


def test_shards_have_them_as_they_were_loaded(model_folder: ModelFolder, tmp_path: Path) -> None:
    original = model_folder("apertus")
    options = engine_options(cpu_kernels="torch", use_tqdm_on_load=False)
    save_sharded_state(original, options, tmp_path / "saved", 2**30)
    check(original, tmp_path / "saved", load_format="sharded_state")


def test_it_may_have_another_activation(model_folder: ModelFolder) -> None:
    check(model_folder("apertus", hidden_act="relu2", attention_bias=False))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop(f"{NUMBERS}.alpha_n"), r"lacks layers\.1\.mlp\.act_fn\.weight"),
        (lambda tensors: tensors.pop(f"{NUMBERS}.eps"), r"lacks layers\.1\.mlp\.act_fn\.weight"),
        (
            lambda tensors: tensors.update({f"{NUMBERS}.alpha_p": torch.ones(96)}),
            r"model\.layers\.1\.mlp\.act_fn\.alpha_p: shape \[96\] in the checkpoint is not a single number",
        ),
        (
            lambda tensors: tensors.update({f"{NUMBERS}.gamma": torch.ones(1)}),
            r"no parameter for the checkpoint's model\.layers\.1\.mlp\.act_fn\.gamma",
        ),
    ],
)
def test_numbers_that_are_not_there(
    model_folder: ModelFolder, tmp_path: Path, change: Callable[[Tensors], Any], words: str
) -> None:
    folder = copied(model_folder("apertus"), tmp_path / "broken", change)
    with pytest.raises(StartupError, match=words), running_engine(folder):
        pass


def test_a_rotation_as_transformers_4_wrote_it(model_folder: ModelFolder) -> None:
    config = json.loads((model_folder("apertus") / "config.json").read_text())
    wanted = config_for(config).rope_parameters
    assert (wanted["rope_type"], wanted["rope_theta"], wanted["factor"]) == ("llama3", 1.2e7, 8.0)
    scaling = dict(config.pop("rope_parameters"))
    theta = scaling.pop("rope_theta")
    assert config_for(config | {"rope_scaling": scaling, "rope_theta": theta}).rope_parameters == wanted
    assert config_for(config | {"rope_scaling": scaling | {"type": "llama3"}}).rope_parameters == wanted
