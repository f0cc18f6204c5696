"""Every `--load-format` that reads tensors yields the tensors that were written, by name, whole and in slices."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tensorizer import TensorSerializer

from engine_svc.loader.formats.base import CheckpointFormat
from engine_svc.loader.formats.registry import FORMATS, create_format, format_named
from quire.errors import StartupError
from quire.options.load import LoadOptions
from tests.support.gguf_files import write_gguf
from tests.support.mistral_files import write_mistral
from tests.support.tiny_models import make_model


def write_consolidated(file: Path, folder: Path) -> None:
    """Writes Mistral's format with the head counts of `llama-untied`."""
    write_mistral(load_file(file), {"num_attention_heads": 4, "num_key_value_heads": 4}, folder)


def write_tensorizer(file: Path, folder: Path) -> None:
    serializer = TensorSerializer(str(folder / "model.tensors"))
    serializer.write_state_dict(load_file(file))
    serializer.close()


# Format → function that stores the tensors of a safetensors file in a folder in that format.
WRITERS: dict[str, Callable[[Path, Path], object]] = {
    "auto": lambda file, folder: shutil.copy(file, folder),
    "safetensors": lambda file, folder: shutil.copy(file, folder),
    "bitsandbytes": lambda file, folder: shutil.copy(file, folder),
    "fastsafetensors": lambda file, folder: shutil.copy(file, folder),
    "runai_streamer": lambda file, folder: shutil.copy(file, folder),
    "tensorizer": write_tensorizer,
    "mistral": write_consolidated,
    "gguf": lambda file, folder: write_gguf(make_model(file.parent / "model", "llama-untied"), folder),
    "pt": lambda file, folder: torch.save(load_file(file), folder / "pytorch_model.bin"),
    "npcache": lambda file, folder: torch.save(load_file(file), folder / "pytorch_model.bin"),
}


def test_every_format_that_reads_tensors_is_here() -> None:
    assert WRITERS.keys() == {name for name in FORMATS if issubclass(format_named(name), CheckpointFormat)}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = make_model(tmp_path_factory.mktemp("model"), "llama-untied")
    return dict(load_file(folder / "model.safetensors"))


@pytest.fixture(params=WRITERS)
def source(request: pytest.FixtureRequest, written: dict[str, torch.Tensor], tmp_path: Path) -> CheckpointFormat:
    file, folder = tmp_path / "model.safetensors", tmp_path / "folder"
    save_file(written, file)
    folder.mkdir()
    WRITERS[request.param](file, folder)
    made = create_format(folder, LoadOptions(load_format=request.param))
    assert isinstance(made, CheckpointFormat)
    return made


def test_names_and_files(source: CheckpointFormat, written: dict[str, torch.Tensor]) -> None:
    names = source.names()
    assert names.keys() == written.keys()
    assert {*names.values()} == {*source.files()}
    assert all(file.is_relative_to(source.folder) and file.is_file() for file in source.files())


def test_values(source: CheckpointFormat, written: dict[str, torch.Tensor]) -> None:
    seen = set()
    for name, found in source.tensors():
        expected = written[name]
        assert list(found.get_shape()) == list(expected.shape)
        assert torch.equal(found[...], expected)
        assert torch.equal(found[1:3], expected[1:3])
        if expected.dim() == 2:
            assert torch.equal(found[slice(0, 2), slice(1, 5)], expected[:2, 1:5])
        seen.add(name)
    assert seen == written.keys()


def test_a_file_that_is_gone(source: CheckpointFormat) -> None:
    for file in source.files():
        file.unlink()
    with pytest.raises(StartupError, match=str(source.folder)):
        source.files()
    with pytest.raises(StartupError, match=str(source.folder)):
        list(source.tensors())
