"""Digests of a checkpoint's tensors, as the trainer that has made them can compute them too."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from engine_svc.loader.checkpoint_form import read_form
from engine_svc.loader.formats.registry import create_format
from quire.options.engine import EngineOptions

_PIECE_BYTES = 1 << 20


class _Entry(msgspec.Struct):
    data_offsets: tuple[int, int]  # in the part of the file after its head


def tensor_digests(folder: Path, options: EngineOptions) -> Mapping[str, str]:
    """SHA-256 of the bytes of each tensor that the model reads, in hexadecimal digits, by its name.

    Raises:
        StartupError: the folder is not a checkpoint in safetensors files.
        OSError: a file cannot be read.
    """
    wanted = read_form(folder, options).tensors
    found: dict[str, str] = {}
    for file in create_format(folder, options.load).files():
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            entries = msgspec.json.decode(opened.read(length), type=dict[str, msgspec.Raw])
            for name in wanted.keys() & entries.keys():
                start, end = msgspec.json.decode(entries[name], type=_Entry).data_offsets
                opened.seek(8 + length + start)
                digest = hashlib.sha256()
                for place in range(start, end, _PIECE_BYTES):
                    digest.update(opened.read(min(_PIECE_BYTES, end - place)))
                found[name] = digest.hexdigest()
    return found
