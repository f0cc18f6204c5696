"""Draft models that are missing or do not fit the target model: each refusal says what was found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_svc.parallel.group import ParallelGroups
from engine_svc.runner.runner import Runner
from quire.errors import StartupError
from quire.options.model import ModelOptions
from tests.support.engine_options import engine_options
from tests.support.tiny_models import make_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    families = ("llama", "mistral", "bamba", "mamba", "qwen3", "gemma4")
    return {name: make_model(tmp_path_factory.mktemp(name), name) for name in families}


def load(target: Path, model: object, **config: Any) -> Runner:
    given = {"method": "draft_model", "model": str(model)} | config
    options = engine_options(dtype="float32", use_tqdm_on_load=False, speculative_config=given)
    return Runner(ModelOptions(model=str(target)), options, ParallelGroups(), torch.device("cpu"))


def refusal(target: Path, model: object, **config: Any) -> str:
    with pytest.raises(StartupError) as caught:
        load(target, model, **config)
    assert str(caught.value).startswith("--speculative-config")
    return str(caught.value)


def test_another_family_may_guess(folders: dict[str, Path]) -> None:
    spec = load(folders["llama"], folders["qwen3"]).spec()
    assert spec.draft_bytes_per_block == 2 * spec.block_size * 3 * 2 * 32 * 4


def test_targets_that_nothing_can_guess_for(folders: dict[str, Path]) -> None:
    assert "has no attention layers" in refusal(folders["mamba"], folders["llama"])
    assert "Set --disable-sliding-window" in refusal(folders["mistral"], folders["llama"])


def test_drafts_that_are_none(folders: dict[str, Path], tmp_path: Path) -> None:
    assert "there is no such folder" in refusal(folders["llama"], tmp_path / "nowhere")
    assert "has no config.json" in refusal(folders["llama"], tmp_path)
    assert "BambaForCausalLM has recurrent layers" in refusal(folders["llama"], folders["bamba"])
    assert "Gemma4ForCausalLM has layers with different heads" in refusal(folders["llama"], folders["gemma4"])
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MedusaModel"]}))
    assert re.search(
        r"config\.json in .* has the architecture MedusaModel; expected one", refusal(folders["llama"], tmp_path)
    )


def test_a_broken_checkpoint_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folders["qwen3"] / "config.json").read_bytes())
    assert "has no *.safetensors weights" in refusal(folders["llama"], tmp_path)
    weights = (folders["qwen3"] / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:-100])
    assert "model.safetensors" in refusal(folders["llama"], tmp_path)


def test_ranks_of_the_draft(folders: dict[str, Path]) -> None:
    found = refusal(folders["llama"], folders["qwen3"], draft_tensor_parallel_size=3)
    assert "draft_tensor_parallel_size is 3; expected 1" in found
