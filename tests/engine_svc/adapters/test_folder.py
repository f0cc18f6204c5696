"""An adapter's folder: what is served from it, and that everything else is refused by name."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_svc.adapters.folder import read_folder, revision_of
from engine_svc.adapters.targets import TargetModules
from quire.errors import InvalidRequest
from tests.support.adapter_folders import low_rank, write_adapter

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"
MODULES = {Q: (8, 6), DOWN: (6, 10), "lm_head": (40, 6), "model.embed_tokens": (6, 40)}
PREFIX = "base_model.model."
PARTS = low_rank({Q: MODULES[Q], DOWN: MODULES[DOWN]})
EMBEDDING = {
    f"{PREFIX}model.embed_tokens.lora_embedding_A": np.ones((4, 40), np.float32),
    f"{PREFIX}model.embed_tokens.lora_embedding_B": np.ones((6, 4), np.float32),
}


def refusal(folder: Path, max_rank: int = 16) -> str:
    with pytest.raises(InvalidRequest) as raised:
        read_folder(folder, max_rank, MODULES)
    assert raised.value.parameter == "path"
    return raised.value.message


def test_parts_are_found_with_where_they_lie(tmp_path: Path) -> None:
    folder = read_folder(write_adapter(tmp_path, PARTS | EMBEDDING), 16, MODULES)
    assert folder.parts.keys() == {Q, DOWN, "model.embed_tokens"}
    assert folder.rank == 4
    assert folder.base_model_name == "base"
    data = folder.weights_file.read_bytes()
    for part in folder.parts.values():
        for place in (part.a, part.b):
            values = np.frombuffer(data, np.float32, math.prod(place.shape), place.start).reshape(place.shape)
            np.testing.assert_array_equal(values, (PARTS | EMBEDDING)[place.name])
    assert folder.parts["model.embed_tokens"].is_embedding
    assert not folder.parts[Q].is_embedding


@pytest.mark.parametrize(("ends", "left"), [(("q_proj",), {Q}), (("qkv_proj", "mlp.down_proj"), {Q, DOWN})])
def test_only_target_modules_are_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ends: tuple[str, ...], left: set[str]
) -> None:
    folder = write_adapter(tmp_path, PARTS | EMBEDDING)
    assert read_folder(folder, 16, MODULES, TargetModules(ends)).parts.keys() == left
    assert f"{folder}: changes of " in caplog.text and "embed_tokens are left out" in caplog.text


def test_an_adapter_must_change_a_target_module(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="changes none of the modules that --lora-target-modules allows: own_proj"):
        read_folder(write_adapter(tmp_path, PARTS), 16, MODULES, TargetModules(("own_proj",)))


@pytest.mark.parametrize(
    ("given", "scales"),
    [
        ({}, (2.0, 2.0)),
        ({"lora_alpha": 1}, (0.25, 0.25)),
        ({"use_rslora": True}, (4.0, 4.0)),
        ({"alpha_pattern": {"down_proj": 32}}, (2.0, 8.0)),
        ({"alpha_pattern": {"own_proj": 32}}, (2.0, 2.0)),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 16, "q_proj": 32}}, (4.0, 2.0)),
        ({"alpha_pattern": {r"layers\.[1-9]\..*": 16}}, (2.0, 4.0)),
        ({"alpha_pattern": {".*": 4, "q_proj": 32}}, (1.0, 1.0)),
    ],
)
def test_scales_follow_the_configuration(tmp_path: Path, given: dict[str, Any], scales: tuple[float, float]) -> None:
    parts = read_folder(write_adapter(tmp_path, PARTS, **given), 16, MODULES).parts
    assert (parts[Q].scale, parts[DOWN].scale) == scales


def test_ranks_may_differ(tmp_path: Path) -> None:
    tensors = low_rank({Q: MODULES[Q]}, 2) | low_rank({DOWN: MODULES[DOWN]}, 8)
    folder = read_folder(write_adapter(tmp_path, tensors, 2, rank_pattern={"down_proj": 8}), 8, MODULES)
    assert [folder.parts[module].rank for module in (Q, DOWN)] == [2, 8]
    assert folder.parts[DOWN].scale == 0.5
    assert folder.rank == 8
    assert "has rank 8, but --max-lora-rank is 7; start the server with --max-lora-rank 8" in refusal(tmp_path, 7)
    write_adapter(tmp_path, tensors, 2, rank_pattern={"down_proj": 9})
    assert f"{DOWN}.lora_A.weight has rank 8 (its shape is [8, 10]), but adapter_config.json says 9" in refusal(
        tmp_path
    )


def test_the_head_and_the_embedding_may_come_whole(tmp_path: Path) -> None:
    tensors = {
        f"{PREFIX}lm_head.weight": np.ones((40, 6), np.float32),
        f"{PREFIX}model.embed_tokens.base_layer.weight": np.ones((40, 6), np.float32),
    }
    folder = read_folder(write_adapter(tmp_path, PARTS | tensors, modules_to_save=["lm_head"]), 16, MODULES)
    assert folder.whole.keys() == {"lm_head"}
    assert folder.unchanged.keys() == {"model.embed_tokens"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"r": 0}, "ranks must be at least 1"),
        ({"r": "4"}, "Expected `int`"),
        ({"rank_pattern": {"q": -1}}, "ranks must be at least 1"),
        ({"lora_alpha": None}, "Expected `float`"),
        ({"use_dora": True}, "use_dora is not supported: weights decomposed into magnitude and direction"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"lora_bias": True}, "lora_bias is not supported"),
        ({"modules_to_save": ["score"]}, "modules_to_save names 'score'"),
        ({"layer_replication": [[0, 1]]}, "layer_replication is not supported"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices is not supported"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters is not supported"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens is not supported"),
        ({"use_qalora": True}, "use_qalora is not supported"),
        (
            {"init_lora_weights": "pissa_niter_4"},
            "init_lora_weights is 'pissa_niter_4', which changes the base model's",
        ),
        ({"init_lora_weights": "OLoRA"}, "init_lora_weights is 'OLoRA'"),
        ({"kasa_config": {"beta": 1}}, "kasa_config is not supported"),
        ({"alpha_pattern": {"(": 1}}, "which is not a valid regular expression"),
        ({"alpha_pattern": {f"a{index}$": 1 for index in range(65)}}, "at most 64"),
        ({"invented": 1}, "setting 'invented', which is not known"),
    ],
)
def test_what_is_not_served_is_named(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    assert words in refusal(write_adapter(tmp_path, PARTS, **given))


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({}, "has no tensors"),
        (low_rank({"model.layers.9.mlp.up_proj": (8, 6)}), "model.layers.9.mlp.up_proj, which the model does not have"),
        (low_rank({Q: (8, 7)}), f"{Q}.lora_A.weight has the shape [4, 7], but the model needs [4, 6]"),
        (low_rank({Q: (9, 6)}), f"{Q}.lora_B.weight has the shape [9, 4], but the model needs [8, 4]"),
        (dict(list(PARTS.items())[1:]), "but not the other tensor of its pair"),
        (PARTS | {f"{PREFIX}{Q}.lora_A.weight": np.ones((3, 6), np.float32)}, "do not match: expected"),
        (
            PARTS | {f"{PREFIX}{Q}.lora_magnitude_vector": np.ones(8, np.float32)},
            "lora_magnitude_vector', which is not",
        ),
        (PARTS | {f"{PREFIX}{Q}.bias": np.ones(8, np.float32)}, ".bias', which is not supported"),
        (PARTS | {"q_proj.lora_A.weight": np.ones((4, 6), np.float32)}, "names must begin with base_model.model."),
        (PARTS | {f"{PREFIX}lm_head.weight": np.ones((41, 6), np.float32)}, "[41, 6], but the model needs [40, 6]"),
        (PARTS | {f"{PREFIX}score.weight": np.ones((2, 6), np.float32)}, "whole weights of lm_head and embed_tokens"),
        ({name: value.astype(np.float64) for name, value in PARTS.items()}, "is of type F64"),
        ({name: value[None] for name, value in PARTS.items()}, "vectors and matrices"),
        ({name: value[0] for name, value in PARTS.items()}, "do not match: expected"),
        (
            EMBEDDING | low_rank({"model.embed_tokens": (6, 40)}),
            "of a linear layer and of an embedding for the same module",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, tensors: dict[str, Any], words: str) -> None:
    assert words in refusal(write_adapter(tmp_path, tensors))


def test_files_that_are_missing_or_none_are_named(tmp_path: Path) -> None:
    assert "is not a folder" in refusal(tmp_path / "nowhere")
    assert "adapter_config.json cannot be read" in refusal(tmp_path)
    weights = write_adapter(tmp_path, PARTS) / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.unlink()
    assert "adapter_model.safetensors cannot be read" in refusal(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    assert "safe_serialization=True" in refusal(tmp_path)
    os.mkfifo(weights)
    assert "is not a regular file" in refusal(tmp_path)
    weights.unlink()
    weights.write_bytes(whole[:-1])
    assert "it is damaged or truncated" in refusal(tmp_path)
    weights.write_bytes(whole + b"more")
    assert "4 extra bytes after its tensors" in refusal(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    assert "is damaged" in refusal(tmp_path)
    (tmp_path / "adapter_config.json").write_text(" " * (2**20 + 1))
    assert "more than 1048576 bytes" in refusal(tmp_path)


@given(data=st.binary(max_size=300), lead=st.booleans())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_header_gets_further_than_a_refusal(tmp_path: Path, data: bytes, lead: bool) -> None:
    weights = write_adapter(tmp_path, PARTS) / "adapter_model.safetensors"
    weights.write_bytes(struct.pack("<Q", len(data)) + data if lead else data)
    assert refusal(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [4, 6], "data_offsets": [0, 95]},
        {"dtype": "F32", "shape": [4, 6], "data_offsets": [-96, 0]},
        {"dtype": "F32", "shape": [4, 6], "data_offsets": [2**62, 2**62 + 96]},
        {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 96]},
        {"dtype": "F32", "shape": [0, 6], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": "46", "data_offsets": [0, 4]},
    ],
)
def test_places_outside_of_the_file_are_refused(tmp_path: Path, entry: dict[str, Any]) -> None:
    header = json.dumps({f"{PREFIX}{Q}.lora_A.weight": entry}).encode()
    weights = write_adapter(tmp_path, PARTS) / "adapter_model.safetensors"
    weights.write_bytes(struct.pack("<Q", len(header)) + header + bytes(96))
    assert refusal(tmp_path)


def test_an_expression_that_takes_for_ever_is_given_up(tmp_path: Path) -> None:
    modules = {"a" * 200: (3, 5)}
    write_adapter(tmp_path, low_rank(modules), alpha_pattern={"(a|aa)+$b": 1})
    with pytest.raises(InvalidRequest, match="takes too long"):
        read_folder(tmp_path, 16, modules)


def test_a_revision_names_configuration_and_weights(tmp_path: Path) -> None:
    first = revision_of(write_adapter(tmp_path / "a", PARTS))
    assert len(first) == 64
    assert revision_of(write_adapter(tmp_path / "b", PARTS)) == first
    assert revision_of(write_adapter(tmp_path / "c", PARTS, lora_alpha=3)) != first
    assert revision_of(write_adapter(tmp_path / "d", low_rank({Q: MODULES[Q]}, seed=1))) != first
