"""Which files belong to a model in GGUF."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from quire.errors import StartupError
from quire.gguf.files import files_of, model_in, read_gguf
from quire.gguf.place import chosen_file, split_name
from quire.hub import Hub, Wanted
from quire.model_folder import check_path, model_folder


def write(file: Path, *tensors: str, **numbers: int) -> Path:
    writer = gguf.GGUFWriter(file, "llama")
    for name, value in numbers.items():
        writer.add_uint16(name.replace("_", ".", 1), value)
    for name in tensors:
        writer.add_tensor(name, np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return [
        write(tmp_path / f"m-{index + 1:05}-of-00002.gguf", name, split_no=index, split_count=2)
        for index, name in enumerate("ab")
    ]


@pytest.mark.parametrize("index", [0, 1])
def test_several_parts(parts: list[Path], index: int) -> None:
    """Naming any part finds all of them."""
    model = read_gguf(parts[index])
    assert model.files == parts
    assert {name: tensor.file for name, tensor in model.tensors.items()} == dict(zip("ab", parts, strict=True))


def test_a_missing_part(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(StartupError, match=r"m-00002-of-00002.gguf is missing .*has 2 files"):
        read_gguf(parts[0])


def test_parts_of_other_models(parts: list[Path]) -> None:
    write(parts[1], "b", split_no=1, split_count=3)
    with pytest.raises(StartupError, match=r"file 1 of 3, counted from 0; expected 1 of 2"):
        read_gguf(parts[0])
    write(parts[1], "a", split_no=1, split_count=2)
    with pytest.raises(StartupError, match=r"a is also in m-00001-of-00002.gguf"):
        read_gguf(parts[0])


def test_no_part_is_invented(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="00000"):
        files_of(tmp_path / "m-00001-of-00000.gguf")


def test_the_only_model_of_a_folder(tmp_path: Path, parts: list[Path]) -> None:
    (tmp_path / "mmproj-F16.gguf").touch()
    assert model_in(tmp_path) == parts[0]
    assert model_folder(Wanted(str(tmp_path)), Hub()) == parts[0]
    write(tmp_path / "other.gguf")
    with pytest.raises(StartupError, match=r"2 GGUF models: m-00001-of-00002.gguf, other.gguf"):
        model_in(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert model_folder(Wanted(str(tmp_path)), Hub()) == tmp_path


def test_a_file_is_a_model(parts: list[Path]) -> None:
    check_path(str(parts[0]))
    assert model_folder(Wanted(str(parts[0])), Hub()) == parts[0]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for name in (str(tmp_path / "x.gguf"), "x.gguf", "./x.gguf"):
        with pytest.raises(StartupError, match="there is no such file"):
            check_path(name)


@pytest.mark.parametrize(
    ("model", "repository", "pattern"),
    [
        ("owner/name", "owner/name", None),
        ("owner/name:file.gguf", "owner/name", "file.gguf"),
        ("owner/name:folder/m-00001-of-00003.gguf", "owner/name", "folder/m-*-of-00003.gguf"),
        ("owner/name:Q4_K_M", "owner/name", "*Q4_K_M*.gguf"),
    ],
)
def test_names_on_the_hub(model: str, repository: str, pattern: str | None) -> None:
    assert split_name(model) == (repository, pattern)


def test_a_download_has_other_files_beside_it(tmp_path: Path) -> None:
    for name in ("m-Q8_0.gguf", "m-Q4_K_M-00002-of-00002.gguf", "m-Q4_K_M-00001-of-00002.gguf"):
        (tmp_path / name).touch()
    assert chosen_file(tmp_path, "*Q4_K_M*.gguf", "o/n:Q4_K_M").name == "m-Q4_K_M-00001-of-00002.gguf"
    with pytest.raises(StartupError, match=r"o/n:Q5_0: the repository has no file \*Q5_0"):
        chosen_file(tmp_path, "*Q5_0*.gguf", "o/n:Q5_0")
