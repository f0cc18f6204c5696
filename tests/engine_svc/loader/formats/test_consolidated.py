"""Mistral's own layout: the same model with other tensor names and another order of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_svc.loader.formats.consolidated import huggingface_name
from engine_svc.loader.formats.registry import create_format
from quire.errors import StartupError
from quire.options.load import LoadOptions
from tests.support.mistral_files import as_mistral
from tests.support.run_engine import random_prompts, run, running_engine, tokens
from tests.support.tiny_models import check_greedy, make_model


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("mistral", {}),
        ("mixtral", {}),
        ("mistral4", {}),
        pytest.param("mistral", {"tensor_parallel_size": 2, "cpu_threads": 1}, marks=pytest.mark.slow),
    ],
)
def test_it_computes_the_same(tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    original = make_model(tmp_path / "original", family)
    folder = as_mistral(original, tmp_path / "model")
    prompts = random_prompts(5, 40)
    with running_engine(folder, **options) as engine:
        found = tokens(run(engine, prompts))
    check_greedy(original, prompts, found, 64)


def test_names_of_quantized_tensors() -> None:
    assert huggingface_name("layers.3.attention.wo.qscale_act") == "model.layers.3.self_attn.o_proj.input_scale"
    assert huggingface_name("layers.3.feed_forward.w2.qscale_weight") == "model.layers.3.mlp.down_proj.weight_scale"
    assert huggingface_name("vision_encoder.a.weight") == "vision_encoder.a.weight"


def test_names_of_audio_encoders_within_another_module() -> None:
    start = "mm_streams_embeddings.embedding_module."
    assert huggingface_name(f"{start}tok_embeddings.weight") == "model.embed_tokens.weight"
    assert huggingface_name(f"{start}whisper_encoder.conv_layers.1.conv.bias") == "model.audio_tower.conv2.bias"
    norm = f"{start}whisper_encoder.transformer.layers.7.ffn_norm.weight"
    assert huggingface_name(norm) == "model.audio_tower.layers.7.final_layer_norm.weight"


@pytest.mark.parametrize(
    ("params", "words"),
    [(None, "has no params.json"), ("{}", "lacks 'n_heads'"), ("[1]", "not a JSON object"), ("{", "cannot be read")],
)
def test_without_its_parameters(tmp_path: Path, params: str | None, words: str) -> None:
    if params:
        (tmp_path / "params.json").write_text(params)
    with pytest.raises(StartupError, match=words):
        create_format(tmp_path, LoadOptions(load_format="mistral"))


def test_auto_takes_hugging_faces_layout_where_there_are_both(tmp_path: Path) -> None:
    original = make_model(tmp_path / "original", "mistral")
    folder = as_mistral(original, tmp_path / "model")
    names = {name: file.name for name, file in create_format(folder, LoadOptions()).names().items()}
    assert {*names.values()} == {"consolidated.safetensors"}
    (folder / "model.safetensors").write_bytes((original / "model.safetensors").read_bytes())
    again = {name: file.name for name, file in create_format(folder, LoadOptions()).names().items()}
    assert again == dict.fromkeys(names, "model.safetensors")
