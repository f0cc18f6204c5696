"""Formats that are read by third-party packages."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tensorizer import TensorSerializer

from engine_svc.loader.formats.base import CheckpointFormat
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.formats.safetensors_files import Safetensors
from engine_svc.loader.save import save_sharded_state
from quire.errors import StartupError
from quire.options.load import LoadOptions
from tests.support.engine_options import engine_options
from tests.support.run_engine import random_prompts, run, running_engine, tokens
from tests.support.tiny_models import check_greedy, make_model

NAMES = {
    "fastsafetensors": ("fastsafetensors", "fastsafetensors"),
    "runai_streamer": ("runai_model_streamer", "runai"),
    "tensorizer": ("tensorizer", "tensorizer"),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("model"), "qwen2", max_shard_size="60KB")
    tensors = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    serializer = TensorSerializer(str(folder / "model.tensors"))
    serializer.write_state_dict(tensors)
    serializer.close()
    return folder


def make(folder: Path, name: str, **options: Any) -> CheckpointFormat:
    made = create_format(folder, LoadOptions(load_format=name, **options))
    assert isinstance(made, CheckpointFormat)
    return made


def check(original: Path, folder: Path, **options: Any) -> None:
    prompts = random_prompts(5, 20)
    with running_engine(folder, **options) as engine:
        found = tokens(run(engine, prompts))
    check_greedy(original, prompts, found, 64)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_runs_from_them(original: Path, name: str) -> None:
    check(original, original, load_format=name)


def test_shards_are_streamed(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNAI_STREAMER_CONCURRENCY", raising=False)
    save_sharded_state(original, engine_options(cpu_kernels="torch"), tmp_path, 100_000)
    options = {"model_loader_extra_config": {"concurrency": 2, "pattern": "model-rank-{rank}-part-{part}.safetensors"}}
    check(original, tmp_path, load_format="runai_streamer_sharded", **options)
    assert os.environ.pop("RUNAI_STREAMER_CONCURRENCY") == "2"


@pytest.mark.parametrize("name", NAMES)
def test_without_the_package(original: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, extra = NAMES[name]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(StartupError, match=rf"--load-format {name} needs the package .*pip install 'quire\[{extra}\]'"):
        list(make(original, name).tensors())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "tensorizer"])
def test_a_truncated_file(tmp_path: Path, name: str) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(1000)}, file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(StartupError, match=r"model\.safetensors"):
        list(make(tmp_path, name).tensors())


def test_files_of_tensorizer(original: Path, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"model\.tensors does not exist\. Set tensorizer_uri"):
        make(tmp_path, "tensorizer").files()
    (tmp_path / "other.tensors").write_bytes((original / "model.tensors").read_bytes())
    other = {"model_loader_extra_config": {"tensorizer_uri": "other.tensors", "verify_hash": True}}
    assert {*make(tmp_path, "tensorizer", **other).names().values()} == {tmp_path / "other.tensors"}
    (tmp_path / "other.tensors").write_bytes(b"broken" * 100)
    with pytest.raises(StartupError, match=r"other\.tensors cannot be read as a tensorizer file"):
        make(tmp_path, "tensorizer", **other).names()


def test_eager_reads_files_whole(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    read_bytes = Path.read_bytes

    def noted(file: Path) -> bytes:
        read.append(file.name)
        return read_bytes(file)

    monkeypatch.setattr(Path, "read_bytes", noted)
    lazy = {name: found[...].clone() for name, found in make(original, "safetensors").tensors()}
    assert not read
    source = make(original, "safetensors", safetensors_load_strategy="eager")
    eager = {name: found[...] for name, found in source.tensors()}
    assert read == [file.name for file in source.files()]
    assert len(read) > 1
    assert eager.keys() == lazy.keys() and all(torch.equal(eager[name], lazy[name]) for name in lazy)


def test_a_truncated_file_is_not_read_eagerly(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x10")
    with pytest.raises(StartupError, match=r"model\.safetensors is not a valid safetensors file"):
        list(make(tmp_path, "safetensors", safetensors_load_strategy="eager").tensors())


def test_ignored_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({name: torch.ones(1)}, tmp_path / f"model-{name}.safetensors")
    source = make(tmp_path, "safetensors", ignore_patterns=("*-b.*",))
    assert isinstance(source, Safetensors)
    assert source.names().keys() == {"a"}
