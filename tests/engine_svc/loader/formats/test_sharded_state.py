"""The shard that each rank holds, written and read again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.model import load_model
from engine_svc.loader.save import save_sharded_state
from engine_svc.parallel.group import ParallelGroup, ParallelGroups
from engine_svc.parallel.layout import ParallelLayout
from quire.errors import StartupError
from quire.options.load import LoadOptions
from tests.support.engine_options import engine_options
from tests.support.gguf_files import write_metadata
from tests.support.run_engine import random_prompts, run, running_engine, tokens
from tests.support.tiny_models import check_greedy, make_model


def save(model: Path, output: Path, max_file_size: int = 2**30, **options: Any) -> Path:
    given = {"cpu_kernels": "torch", "use_tqdm_on_load": False} | options
    save_sharded_state(model, engine_options(**given), output, max_file_size)
    return output


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "qwen3", "qwen3-moe")


@pytest.fixture(scope="module")
def two_ranks(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(original, tmp_path_factory.mktemp("saved") / "two", 65_536, tensor_parallel_size=2)


def load_rank(folder: Path, rank: int, ranks: int, **options: Any) -> None:
    group = ParallelGroup(rank, ranks)
    groups = ParallelGroups(ParallelLayout(tensor=ranks), rank, tensor=group, expert=group)
    given = {"load_format": "sharded_state", "cpu_kernels": "torch", "use_tqdm_on_load": False} | options
    load_model(folder, engine_options(**given), groups, torch.device("cpu"))


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_it_computes_the_same(original: Path, two_ranks: Path, tmp_path: Path, ranks: int) -> None:
    folder = two_ranks if ranks == 2 else save(original, tmp_path / "one")
    prompts = random_prompts(5, 30)
    options = {"tensor_parallel_size": ranks, "cpu_threads": 1, "load_format": "sharded_state"}
    with running_engine(folder, **options) as engine:
        found = tokens(run(engine, prompts))
    check_greedy(original, prompts, found, 64)


def test_scales_of_a_kv_cache_are_kept(original: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(original, tmp_path / "scaled"))
    weights = load_file(folder / "model.safetensors")
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    # So small that keys and values divided by them exceed e4m3's range.
    scales = {f"model.layers.{n}.self_attn.{part}_scale": torch.tensor([1e-4]) for n in range(layers) for part in "kv"}
    save_file(weights | scales, folder / "model.safetensors")
    saved = save(folder, tmp_path / "saved")
    found = []
    for model, load_format in ((original, "auto"), (folder, "auto"), (saved, "sharded_state")):
        with running_engine(model, kv_cache_dtype="fp8", load_format=load_format) as engine:
            found.append(tokens(run(engine, random_prompts(30))))
    assert found[0] != found[1] == found[2]


def test_what_is_written(original: Path, two_ranks: Path) -> None:
    names = sorted(file.name for file in two_ranks.iterdir())
    assert {"config.json", "generation_config.json"} <= set(names)
    assert {name.partition("-part")[0] for name in names if "rank" in name} == {"model-rank-0", "model-rank-1"}
    parts = sorted(two_ranks.glob("model-rank-0-*"))
    assert len(parts) > 2
    assert all(len(load_file(part)) == 1 or part.stat().st_size < 66_000 for part in parts)


def test_a_rank_reads_its_own_files_alone(two_ranks: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(two_ranks, tmp_path / "model"))
    for file in folder.glob("model-rank-1-*"):
        file.write_bytes(b"broken")
    load_rank(folder, 0, 2)
    with pytest.raises(StartupError, match=r"model-rank-1-part-0\.safetensors is not a valid safetensors file"):
        load_rank(folder, 1, 2)


def test_other_options_than_it_was_saved_with(two_ranks: Path, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"ranks 0, 1, but .* is 4, which needs those of 0 to 3"):
        load_rank(two_ranks, 0, 4)
    with pytest.raises(StartupError, match=r"torch.float32 \[.*\], but the model's is torch.bfloat16"):
        load_rank(two_ranks, 0, 2, dtype="bfloat16")
    folder = Path(shutil.copytree(two_ranks, tmp_path / "model"))
    next(folder.glob("model-rank-0-part-1.*")).unlink()
    with pytest.raises(StartupError, match=r"the shard lacks "):
        load_rank(folder, 0, 2)
    save_file({"strange": torch.ones(1)}, folder / "model-rank-0-part-1.safetensors")
    with pytest.raises(StartupError, match=r"part-1\.safetensors: the model has no parameter strange"):
        load_rank(folder, 0, 2)


def test_names_of_ones_own(two_ranks: Path, tmp_path: Path) -> None:
    for file in two_ranks.iterdir():
        shutil.copy(file, tmp_path / file.name.replace("model-rank-", "r").replace("-part-", "p"))
    load_rank(tmp_path, 0, 2, model_loader_extra_config={"pattern": "r{rank}p{part}.safetensors"})
    with pytest.raises(StartupError, match=r"has no files named model-rank-\{rank\}-part-\{part\}\.safetensors"):
        load_rank(tmp_path, 0, 2)


@pytest.mark.parametrize(
    ("name", "extra", "words"),
    [
        ("sharded_state", {"patern": "x"}, "patern is not known. Did you mean pattern"),
        ("sharded_state", {"pattern": 3}, "Expected `str`"),
        ("safetensors", {"pattern": "x"}, "safetensors has no settings"),
    ],
)
def test_unknown_settings_are_refused(tmp_path: Path, name: str, extra: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        create_format(tmp_path, LoadOptions(load_format=name, model_loader_extra_config=extra))


def test_what_cannot_be_saved(original: Path, two_ranks: Path, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="already has safetensors files"):
        save(original, two_ranks)
    with pytest.raises(StartupError, match="--load-format dummy has no checkpoint that could be divided"):
        save(original, tmp_path / "a", load_format="dummy")
    with pytest.raises(StartupError, match=r"model\.gguf contains the configuration and tokenizer"):
        save(write_metadata(tmp_path / "model.gguf", {}), tmp_path / "a")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["OPTForCausalLM"]}))
    with pytest.raises(StartupError, match="OPTForCausalLM"):
        save(tmp_path, tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_nothing_serves_that_one_rank_cannot_load(two_ranks: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(two_ranks, tmp_path / "model"))
    file = folder / "model-rank-1-part-1.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    options = {"tensor_parallel_size": 2, "cpu_threads": 1, "load_format": "sharded_state"}
    with pytest.raises(StartupError, match=r"model-rank-1-part-1\.safetensors"), running_engine(folder, **options):
        pass
