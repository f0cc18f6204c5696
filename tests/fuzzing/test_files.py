"""Files that are damaged in many ways: what reads them says so in its own words, or reads on."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
import torch
from PIL import Image

from engine_svc.adapters.folder import read_folder
from engine_svc.config_formats.registry import read_model_config
from gateway.requests.prompt_embeds import parse_safetensors
from quire.errors import InvalidRequest, StartupError
from quire.gguf.files import read_gguf
from quire.options.model_form import ModelFormOptions
from quire.tokenizer.files import read_tokenizer_files
from quire.tokenizer.gguf import gguf_tokenizer
from tests.support.adapter_folders import low_rank, write_adapter
from tests.support.audio_files import KINDS, audio_file, sine
from tests.support.films import film
from tests.support.fuzzing import NUM_CASES, chances
from tests.support.mutations import broken_bytes, broken_json
from tokenizer_svc.audio_decoder import decode_audio
from tokenizer_svc.av_container import prepare
from tokenizer_svc.image_decoder import decode_image
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.text import TextCodec
from tokenizer_svc.torch_file import read_tensor
from tokenizer_svc.video_decoder import open_video

pytestmark = pytest.mark.slow

FRAMES = [
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (48, 64, 3)).astype(np.uint8)) for seed in range(3)
]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "vocab_size": 100,
    "text_config": {"num_hidden_layers": 2}, "quantization_config": {"quant_method": "awq", "bits": 4},
}  # fmt: skip


def saved_image(kind: str, frames: Sequence[Image.Image] = FRAMES[:1]) -> bytes:
    file = io.BytesIO()
    frames[0].save(file, kind, **({"save_all": True, "append_images": frames[1:]} if frames[1:] else {}))
    return file.getvalue()


def saved_tensor(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


def first_frame(file: bytes) -> None:
    list(open_video([file]).frames([0]))


def audio_files() -> list[bytes]:
    samples = sine(0.2)
    rates = {"opus": 48_000, "webm": 48_000}
    return [
        audio_file(np.stack([samples] * 2) if kind == "vorbis" else samples, kind, rates.get(kind, 16_000))
        for kind in KINDS
    ]


READERS: Mapping[str, tuple[Callable[[], Sequence[bytes]], Callable[[bytes], object]]] = {
    "images": (lambda: [saved_image(kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP")], decode_image),
    "videos": (
        lambda: [
            *(film(FRAMES, container=each) for each in ("mp4", "matroska")),
            *(saved_image(each, FRAMES) for each in ("GIF", "WEBP")),
        ],
        first_frame,
    ),
    "audios": (audio_files, lambda file: decode_audio(file, 16_000, 30.0)),
    "tensors": (
        lambda: [saved_tensor(torch.ones(3, 4, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16, torch.int64)],
        lambda file: read_tensor(file, "it"),
    ),
    "embeddings": (lambda: [safetensors.numpy.save({"a": np.ones((3, 4), np.float32)})], parse_safetensors),
}  # fmt: skip


@pytest.mark.parametrize("kind", READERS)
def test_what_comes_with_requests(kind: str) -> None:
    make, read = READERS[kind]
    prepare()
    chance, files = chances(), make()
    for file in files:
        read(file)
    for _ in range(NUM_CASES):
        # Media are read in processes of little memory.
        with contextlib.suppress(MediaRejection, InvalidRequest, MemoryError):
            read(broken_bytes(chance, chance.choice(files)))


def broken_file(chance: random.Random, content: bytes) -> bytes:
    """JSON is broken as JSON half of the time."""
    try:
        value = json.loads(content)
    except ValueError:
        return broken_bytes(chance, content)
    if chance.random() < 0.5:
        return broken_bytes(chance, content)
    return json.dumps(broken_json(chance, value)).encode()


def break_one_by_one(folder: Path, read: Callable[[], object], error: type[Exception]) -> None:
    """Breaks one file of a folder at a time."""
    chance, files = chances(), {path: path.read_bytes() for path in folder.iterdir()}
    read()
    for _ in range(NUM_CASES):
        path = chance.choice(list(files))
        path.write_bytes(broken_file(chance, files[path]))
        with contextlib.suppress(error):
            read()
        path.write_bytes(files[path])


def test_adapters(tmp_path: Path) -> None:
    modules = {"q_proj": (8, 6), "layers.0.v_proj": (8, 6)}
    folder = write_adapter(tmp_path / "adapter", low_rank(modules))
    break_one_by_one(folder, lambda: read_folder(folder, 64, modules), InvalidRequest)


def test_configurations(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    break_one_by_one(tmp_path, lambda: read_model_config(tmp_path, ModelFormOptions()), StartupError)


def test_tokenizers(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("[a-z]+"), "isolated")
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config: dict[str, Any] = {"bos_token": "<s>", "added_tokens_decoder": {"3": {"content": "<s>", "special": True}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": "{{ messages }}"}))
    break_one_by_one(
        tmp_path, lambda: TextCodec(read_tokenizer_files(tmp_path)).encode(["ab"], add_special_tokens=True),
        StartupError,
    )  # fmt: skip


def test_gguf_models(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(["a", "b", "ab", "<s>"])
    writer.add_token_types([1, 1, 1, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(3)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    break_one_by_one(tmp_path, lambda: (read_gguf(file), gguf_tokenizer(file)), StartupError)
