"""Files written by torch.save, and npcache's copies of them. Code in them never runs."""

from __future__ import annotations

import json
import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engine_svc.loader.formats import npcache
from engine_svc.loader.formats.npcache import NumpyCache
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.formats.torch_files import TorchFiles
from engine_svc.loader.source import TensorSource
from quire.errors import StartupError
from quire.options.load import LoadOptions
from tests.support.run_engine import random_prompts, run, running_engine, tokens
from tests.support.tiny_models import check_greedy, make_model

TENSORS = {
    "a": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "b": torch.arange(5, dtype=torch.bfloat16),
    "c": torch.tensor(3.0, dtype=torch.float16),
}


class Malice:
    """An object that writes a file when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self._witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._witness,)


def torch_files(folder: Path, name: str = "pt", **options: Any) -> TorchFiles:
    made = create_format(folder, LoadOptions(load_format=name, **options))
    assert isinstance(made, TorchFiles)
    return made


def read(source: TensorSource) -> dict[str, torch.Tensor]:
    return {name: found[...] for name, found in source.tensors()}


def check(source: TensorSource) -> None:
    found = read(source)
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], TENSORS[name]) and found[name].dtype == TENSORS[name].dtype for name in found)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
@pytest.mark.parametrize("archive", [True, False], ids=["archive", "as torch before 1.6"])
def test_what_torch_has_saved(tmp_path: Path, name: str, archive: bool) -> None:
    torch.save(TENSORS, tmp_path / name, _use_new_zipfile_serialization=archive)
    torch.save({"step": 7}, tmp_path / "optimizer.pt")
    source = torch_files(tmp_path)
    assert source.names() == dict.fromkeys(TENSORS, tmp_path / name)
    check(source)


def test_shards(tmp_path: Path) -> None:
    for name, tensor in TENSORS.items():
        torch.save({name: tensor}, tmp_path / f"{name}.bin")
    index = {"weight_map": {name: f"{name}.bin" for name in TENSORS}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    check(torch_files(tmp_path))
    (tmp_path / "b.bin").unlink()
    with pytest.raises(StartupError, match=r"b\.bin is missing .*names 3 files"):
        read(torch_files(tmp_path))


@pytest.mark.parametrize("name", ["pt", "npcache"])
@pytest.mark.parametrize("archive", [True, False], ids=["archive", "bare"])
def test_code_in_a_pickle_never_runs(tmp_path: Path, name: str, archive: bool) -> None:
    witness = tmp_path / "it ran"
    content = {**TENSORS, "d": Malice(witness)}
    torch.save(content, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=archive)
    source = torch_files(tmp_path, name)
    for attempt in (lambda: read(source), source.names):
        with pytest.raises(StartupError, match=r"pytorch_model\.bin contains more than tensors.*Quire never does"):
            attempt()
    assert not witness.exists()
    pickle.loads(pickle.dumps(Malice(witness)))
    assert witness.exists()  # plain pickle would have run it


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([TENSORS["a"]], "contains list; expected a dictionary of tensors"),
        ({"step": 3, **TENSORS}, "'step' is int; expected a tensor"),
        ({"model": TENSORS}, "'model' is dict.*save just that part"),
        ({"a": torch.eye(2).to_sparse()}, "a is sparse"),
        ({"a": torch.ones(2, device="meta")}, "a has no values"),
    ],
)
def test_what_is_no_state_of_a_model(tmp_path: Path, content: Any, words: str) -> None:
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(StartupError, match=words):
        read(torch_files(tmp_path))


def test_broken_files(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.save(TENSORS, file)
    file.write_bytes(file.read_bytes()[:700])
    with pytest.raises(StartupError, match=r"model\.pt cannot be read"):
        read(torch_files(tmp_path))
    file.write_bytes(b"not at all")
    with pytest.raises(StartupError, match=r"model\.pt contains more than tensors, or was not written by torch"):
        read(torch_files(tmp_path))


def test_where_tensors_are_read(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "model.pt")
    for places in ("meta", '{"": "meta"}', '{"cpu": "meta"}'):
        found = read(torch_files(tmp_path, pt_load_map_location=places))
        assert {tensor.device.type for tensor in found.values()} == {"meta"}
    check(torch_files(tmp_path, pt_load_map_location='{"cuda:1": "cpu"}'))


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ("{", "is not valid JSON"),
        ('{"cuda:1": 0}', "expected device names"),
        ('{"": "cpu", "cuda": "cpu"}', "stands for all devices"),
        ("nowhere", "cannot be read.*nowhere"),
    ],
)
def test_places_that_there_are_not(tmp_path: Path, places: str, words: str) -> None:
    torch.save(TENSORS, tmp_path / "model.pt")
    with pytest.raises(StartupError, match=words):
        read(torch_files(tmp_path, pt_load_map_location=places))


def test_copies_are_read_until_the_weights_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(TENSORS, tmp_path / "model.bin")
    check(torch_files(tmp_path, "npcache"))
    with monkeypatch.context() as patch:
        patch.setattr(TorchFiles, "tensors", None)  # fails if it is called again
        check(torch_files(tmp_path, "npcache"))
        assert {file.suffix for file in torch_files(tmp_path, "npcache").files()} == {".npy"}
    torch.save({"e": torch.ones(2)}, tmp_path / "model.bin")
    source = torch_files(tmp_path, "npcache")
    assert source.names() == {"e": tmp_path / "model.bin"}
    assert read(source).keys() == {"e"}
    assert len(list((tmp_path / "quire-np").iterdir())) == 2


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.bool])
def test_copies_of_types_that_numpy_lacks(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 4.0]).to(dtype)
    torch.save({"a": values}, tmp_path / "model.bin")
    for _ in range(2):  # first makes copies, then reads them
        found = read(torch_files(tmp_path, "npcache"))["a"]
        assert found.dtype == dtype and torch.equal(found.float(), values.float())


def test_ranks_that_start_together_make_copies_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(TENSORS, tmp_path / "model.bin")
    write, made = npcache._write, []

    def slowly(*arguments: Any) -> Any:
        made.append(arguments)
        time.sleep(0.2)
        return write(*arguments)

    monkeypatch.setattr(npcache, "_write", slowly)
    with ThreadPoolExecutor(3) as pool:
        for each in [pool.submit(check, torch_files(tmp_path, "npcache")) for _ in range(3)]:
            each.result(60)
    assert len(made) == 1


def test_copies_of_a_folder_that_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies go to the cache. Root may write anywhere, so a file takes the place of the folder for copies."""
    cache, folder = tmp_path / "cache", tmp_path / "model"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    folder.mkdir()
    torch.save(TENSORS, folder / "model.bin")
    (folder / "quire-np").write_text("taken")
    check(torch_files(folder, "npcache"))
    assert all(file.is_relative_to(cache) for file in torch_files(folder, "npcache").files())
    monkeypatch.setattr(npcache, "_write", failing)
    (folder / "model.bin").touch()
    check(torch_files(folder, "npcache"))  # without copies


def failing(*_: Any) -> None:
    raise OSError("disk full")


@pytest.mark.parametrize("spoilt", [b"", b"no numbers"], ids=["empty", "text"])
def test_a_spoilt_copy(tmp_path: Path, spoilt: bytes) -> None:
    torch.save(TENSORS, tmp_path / "model.bin")
    source = torch_files(tmp_path, "npcache")
    read(source)
    source.files()[0].write_bytes(spoilt)
    with pytest.raises(StartupError, match=r"00000\.npy, the copy of a, cannot be read.*Remove"):
        read(source)


def test_a_copy_with_code_in_it_never_runs(tmp_path: Path) -> None:
    witness = tmp_path / "it ran"
    torch.save(TENSORS, tmp_path / "model.bin")
    source = torch_files(tmp_path, "npcache")
    read(source)
    np.save(source.files()[0], np.array([Malice(witness)], dtype=object), allow_pickle=True)
    with pytest.raises(StartupError, match=r"00000\.npy"):
        read(source)
    assert isinstance(source, NumpyCache) and not witness.exists()


@pytest.mark.parametrize("family", ["llama", "biogpt"])  # Quire's own code, and Transformers'
def test_a_model_runs_from_them(tmp_path: Path, family: str) -> None:
    original = make_model(tmp_path / "original", family)
    folder = Path(shutil.copytree(original, tmp_path / "model"))
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    prompts = random_prompts(5, 20)
    with running_engine(folder, load_format="pt") as engine:
        found = tokens(run(engine, prompts))
    check_greedy(original, prompts, found, 64)
    with pytest.raises(StartupError, match=r"no \*\.safetensors.*--load-format pt"), running_engine(folder):
        pass
