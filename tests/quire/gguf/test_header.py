"""GGUF files that are complete, and files that are not what they claim to be."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from quire.errors import StartupError
from quire.gguf.header import MAGIC, read_header
from quire.gguf.types import TYPES

METADATA = {
    "general.name": "a name",
    "a.list": [1, 2, 3],
    "a.texts": ["one", "zwei", ""],
    "a.flag": True,
    "a.float": 0.5,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in METADATA.items():
        if isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("second", np.zeros((4, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_types_are_those_of_the_package() -> None:
    theirs = {kind.value: (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    assert {number: (each.name, each.values, each.bytes) for number, each in TYPES.items()} == theirs


def test_what_a_file_says(file: Path) -> None:
    header = read_header(file)
    assert header.metadata.items() >= METADATA.items()
    first, second = header.tensors["first"], header.tensors["second"]
    assert (first.type.name, first.shape, second.type.name, second.shape) == ("F32", (2, 3), "Q8_0", (4, 32))
    content = file.read_bytes()[first.offset : first.offset + first.num_bytes]
    assert np.frombuffer(content, np.float32).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_file_that_ends_early(file: Path) -> None:
    """Truncation is detected at every seventh of the first 400 bytes and in the last tensor."""
    content = file.read_bytes()
    for length in (*range(0, 400, 7), len(content) - 100):
        file.write_bytes(content[:length])
        with pytest.raises(StartupError, match=f"{file}"):
            read_header(file)


def test_a_truncated_tensor_is_named(file: Path) -> None:
    size = len(content := file.read_bytes())
    file.write_bytes(content[: size - 100])
    with pytest.raises(StartupError, match=rf"second of Q8_0 \[4, 32\] would end at byte \d+.*has {size - 100}.*again"):
        read_header(file)


def header(*, version: int = 3, tensors: int = 0, entries: int = 0) -> bytes:
    return MAGIC + struct.pack("<IQQ", version, tensors, entries)


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def tensor(dimensions: list[int], kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return header(tensors=1) + text(b"t") + shape + struct.pack("<IQ", kind, offset) + bytes(256)


MANY = 1 << 60
HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "cannot be read"),
    "another magic": (b"PK\3\4" + bytes(64), "begins with"),
    "a version to come": (header(version=9), "version is 9"),
    "big-endian": (MAGIC + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
    "many tensors": (header(tensors=MANY) + bytes(64), "announces 1152921504606846976 tensors"),
    "many entries": (header(entries=MANY) + bytes(64), "announces 1152921504606846976 metadata entries"),
    "a long text": (header(entries=1) + struct.pack("<Q", MANY) + bytes(64), "a text of 1152921504606846976 bytes"),
    "a long list": (
        header(entries=1) + text(b"k") + struct.pack("<IIQ", 9, 4, MANY) + bytes(64), "k: it announces .* numbers"
    ),
    "a long list of texts": (
        header(entries=1) + text(b"k") + struct.pack("<IIQ", 9, 8, MANY) + bytes(64), "k: it announces .* strings"
    ),
    "lists of lists": (header(entries=1) + text(b"k") + struct.pack("<IIQ", 9, 9, 2) + bytes(64), "k: .* number 9"),
    "an unknown kind": (header(entries=1) + text(b"k") + struct.pack("<I", 77) + bytes(64), "k: .* number 77"),
    "many dimensions": (tensor([1] * 5), "5 dimensions"),
    "no dimensions": (tensor([]), "0 dimensions"),
    "a large tensor": (tensor([MANY, MANY]), "would end at byte"),
    "an empty tensor": (tensor([0, 4]), "would end at byte"),
    "a tensor far away": (tensor([4], offset=MANY), "would end at byte"),
    "an unknown type": (tensor([32], kind=5), "number 5"),
    "a part of a block": (tensor([40], kind=8), "t has rows of 40 values, but Q8_0 has blocks of 32"),
    "an alignment of nothing": (
        header(entries=1) + text(b"general.alignment") + struct.pack("<II", 4, 0) + bytes(64), "general.alignment is 0"
    ),
    "two of one name": (
        header(tensors=2) + 2 * (text(b"t") + struct.pack("<IQIQ", 1, 4, 0, 0)) + bytes(256), "have the same name"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(tmp_path: Path, name: str) -> None:
    """They are refused at once, whatever sizes they announce."""
    content, message = HOSTILE[name]
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(StartupError, match=message):
        read_header(file)


def test_any_bytes_behind_the_magic(tmp_path: Path) -> None:
    file, generator = tmp_path / "model.gguf", np.random.default_rng(0)
    for _ in range(200):
        file.write_bytes(header(tensors=3, entries=2) + generator.integers(0, 256, 200, np.uint8).tobytes())
        with pytest.raises(StartupError):
            read_header(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot be read"):
        read_header(tmp_path / "model.gguf")
