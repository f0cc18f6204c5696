"""GGUF models give the same output as the same weights in Transformers: families, types, ranks and broken files."""

from __future__ import annotations

import itertools
import json
import shutil
import struct
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from engine_svc.config_formats.registry import read_model_config
from engine_svc.gguf.architectures import ARCHITECTURES
from engine_svc.gguf.facts import Facts
from engine_svc.layers.embedding import VocabParallelEmbedding
from engine_svc.loader.formats.registry import create_format
from engine_svc.runner.native_calls import NotedSteps
from quire.errors import StartupError
from quire.gguf.files import read_gguf
from quire.gguf.types import READ
from quire.options.load import LoadOptions
from quire.options.model_form import ModelFormOptions
from quire.sampling import SamplingParameters
from tests.support.exact_answers import check_answers
from tests.support.gguf_files import Written, write_gguf, write_metadata
from tests.support.native import needs_native
from tests.support.run_engine import Output, random_prompts, run, running_engine, tokens
from tests.support.tiny_mixtures import MIXTURES
from tests.support.tiny_models import FAMILIES as DENSE
from tests.support.tiny_models import HYBRIDS, ROPES, check_greedy, make_model

PROMPTS = random_prompts(3, 25)
GREEDY = SamplingParameters(temperature=0.0, max_tokens=12, ignore_eos=True)
# Where embeddings are scaled up, the likeliest token would otherwise be the last one again, whatever layers compute.
UNTIED = {"tie_word_embeddings": False}
# Tiny models of families that llama.cpp supports, with configuration changes for what GGUF files cannot express.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "llama-untied": {}, "mixtral": {}, "qwen2": {}, "qwen2-moe": {"decoder_sparse_step": 1}, "qwen3": {},
    "qwen3-moe": {"mlp_only_layers": []}, "gpt-oss": {"swiglu_limit": 7.0}, "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {
        "query_pre_attn_scalar": 32, "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    },
    "gemma4": UNTIED | {
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    },
    "gemma4-small": UNTIED, "gemma4-unified": {}, "gemma4-moe": UNTIED, "phi3": {}, "phi3-partial": {},
    "olmo2": {}, "granite": {}, "cohere": {}, "cohere2": {}, "glm4": {}, "smollm3": {}, "seed-oss": {},
    "ministral3": {},
}  # fmt: skip
# Families that are also tested with quantized blocks.
IN_BLOCKS: dict[str, dict[str, Any]] = {
    "apertus": {}, "bloom": {}, "falcon": {"ffn_hidden_size": 256}, "falcon-11b": {"ffn_hidden_size": 256},
    "falcon-40b": {"ffn_hidden_size": 256}, "gpt-neox": {}, "gpt-neox-in-turn": {}, "mpt": {},
    "mpt-clipped": {"attn_config": {"clip_qkv": 1.5}}, "phi": {}, "olmo3": {}, "exaone4": {}, "exaone4-full": {},
    "ernie": {}, "glm": {}, "hunyuan": {},
    "phimoe": {"router_jitter_noise": 0.01}, "olmoe": {"clip_qkv": None},
    "dots": {"sliding_window": None, "max_window_layers": 3}, "ernie-moe": {}, "glm-moe": {}, "granite-moe-shared": {},
    "hunyuan-moe": {}, "minimax-m2": {},
    "llama4": {
        "attention_chunk_size": 8192, "floor_scale": 8192, "no_rope_layer_interval": 4, "no_rope_layers": [],
    },
    "lfm2": {}, "lfm2-moe": {"routed_scaling_factor": 1.0}, "nemotron-h": {}, "nemotron-h-latent": {}, "jamba": {},
    "mamba": {"intermediate_size": 128}, "falcon-mamba": {"intermediate_size": 128},
    "mamba2": {"intermediate_size": 128}, "falcon-h1": {},
    # A tied head would have the embedding's factor too, in llama.cpp as well.
    "falcon-h1-norms": {
        "mamba_norm_before_gate": False, "attention_bias": False, "lm_head_multiplier": 1.0,
        "embedding_multiplier": 1.0,
    },
    "bamba": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}},
    "granite-hybrid": {}, "granite-hybrid-dense": {"position_embedding_type": "nope"},
    "qwen3-next": {"mlp_only_layers": []}, "qwen3.5": {}, "qwen3.5-moe": {},
    "deepseek-v2-plain": {}, "deepseek-v3": {}, "kimi-k2": {}, "deepseek-v3.2": {"index_topk": 32},
    "glm-5": {"index_topk": 32, "num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"]},
    "kimi-linear": {"num_expert_group": 1, "topk_group": 1},
    "gemma4": UNTIED, "gemma4-small": UNTIED, "gemma4-moe": UNTIED,
}  # fmt: skip
# A shape with room for blocks of 256 values.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 128, "num_hidden_layers": 2, "initializer_range": 0.1}  # fmt: skip


def answers(file: Path, **options: Any) -> list[list[Output]]:
    with running_engine(file, **options) as engine:
        return run(engine, PROMPTS, replace(GREEDY, logprobs=4))


def check(written: Written, **options: Any) -> None:
    """Of two experts that are nearly equally good for a token, another one may be chosen."""
    check_answers(written.reference, PROMPTS, answers(written.file, **options), GREEDY.max_tokens, within=2e-2)


def write(folder: Path, kind_of: Callable[[str], str], family: str = "qwen3", **changes: Any) -> Written:
    return write_gguf(make_model(folder / "model", family, **(WIDE | changes)), folder / "gguf", kind_of)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(tmp_path: Path, family: str) -> None:
    """Unquantized weights and configuration come back exactly as written."""
    written = write_gguf(make_model(tmp_path / "model", family, **FAMILIES[family]), tmp_path / "gguf")
    check_answers(tmp_path / "model", PROMPTS, answers(written.file), GREEDY.max_tokens)


@pytest.mark.parametrize("family", IN_BLOCKS)
def test_families_whose_tensors_are_changed(tmp_path: Path, family: str) -> None:
    """Matrices are in quantized blocks where their row length allows, and otherwise in 16 bits."""
    model = make_model(tmp_path / "model", family, **IN_BLOCKS[family])
    check(write_gguf(model, tmp_path / "gguf", lambda name: "Q8_0"))


def test_every_architecture_is_here() -> None:
    tried = {(DENSE | MIXTURES | HYBRIDS)[family][0].removesuffix("Text") for family in FAMILIES | IN_BLOCKS}
    alike = {"Bamba", "Gemma4Unified"}  # GGUF has the same architecture name for them as for others
    assert {each.huggingface for each in ARCHITECTURES.values()} == {f"{name}ForCausalLM" for name in tried - alike}


@pytest.mark.parametrize("scaling", ["linear", "yarn", "llama3"])
def test_rotary_scalings(tmp_path: Path, scaling: str) -> None:
    model = make_model(tmp_path / "model", "llama", rope_parameters=ROPES[scaling])
    check_answers(model, PROMPTS, answers(write_gguf(model, tmp_path / "gguf").file), GREEDY.max_tokens)


@pytest.mark.parametrize("kind", ["F16", "Q4_K"])
def test_types(tmp_path: Path, kind: str) -> None:
    """Each type works for all matrices, including an embedding that is also the output head."""
    check(write(tmp_path, lambda name: kind))


def test_all_types_in_one_file(tmp_path: Path) -> None:
    kinds = itertools.cycle(READ)
    check(write(tmp_path, lambda name: next(kinds), tie_word_embeddings=False))


def mixed(name: str) -> str:
    """Types like llama.cpp's Q4_K_M: more bits where it matters, so the matrices of a layer differ."""
    return (
        "Q6_K" if name in ("output.weight", "token_embd.weight") or "attn_v" in name or "1.ffn_down" in name else "Q4_K"
    )


@pytest.mark.parametrize(("family", "changes"), [
    ("llama", {}), ("phi3", {}), ("qwen3-moe", {"mlp_only_layers": [], "moe_intermediate_size": 256}),
])  # fmt: skip
def test_mixed_types(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    check(write(tmp_path, mixed, family, **changes))


@needs_native
@pytest.mark.parametrize("kind", ["Q4_K", "F32"])
def test_an_embedding_that_is_the_head_is_held_once_and_its_steps_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    written = write(tmp_path, lambda name: kind, tie_word_embeddings=True)
    replayed, loaded = [], []
    run_recorded, packed = NotedSteps.run, VocabParallelEmbedding.pack

    def note(self: NotedSteps, *arguments: Any) -> torch.Tensor | None:
        replayed.append(run_recorded(self, *arguments))
        return replayed[-1]

    def pack(self: VocabParallelEmbedding) -> None:
        method, weight = self._held[0].method, type(self._held[0].method).weight

        def noted(self: Any, parameters: Any) -> Any:
            found = weight(self, parameters)
            loaded.append(weakref.ref(found if isinstance(found, torch.Tensor) else found.codes))
            return found

        monkeypatch.setattr(type(method), "weight", noted)
        packed(self)
        monkeypatch.setattr(type(method), "weight", weight)

    monkeypatch.setattr(NotedSteps, "run", note)
    monkeypatch.setattr(VocabParallelEmbedding, "pack", pack)
    with running_engine(written.file) as engine:
        found = tokens(run(engine, PROMPTS, GREEDY))
        assert [each() for each in loaded] == [None]
    check_greedy(written.reference, PROMPTS, found, GREEDY.max_tokens)
    assert [each for each in replayed if each is not None]


def test_experts_of_different_types(tmp_path: Path) -> None:
    """Expert matrices of one file may differ: the first layer's down projections have more bits."""
    check(write(tmp_path, lambda name: "Q6_K" if "0.ffn_down_exps" in name else "Q4_K", "mixtral"))


def test_over_ranks(tmp_path: Path) -> None:
    """Rows are split so that each rank has whole blocks."""
    check(write(tmp_path, mixed, "mixtral", intermediate_size=512), tensor_parallel_size=2)


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    written = write(tmp_path, lambda name: "Q8_0")
    shutil.move(written.reference, tmp_path / "reference")
    check(Written(written.file.parent, tmp_path / "reference"))
    check(Written(written.file.parent, tmp_path / "reference"), load_format="gguf", quantization="gguf")


def test_a_file_in_parts(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", "qwen3", **WIDE)
    written = write_gguf(model, tmp_path / "gguf", mixed, tensors_in_a_part=9)
    assert written.file.name == "model-00001-of-00003.gguf"
    check(written)
    (last,) = written.file.parent.glob("*-00003-of-*")
    last.unlink()
    with pytest.raises(StartupError, match=r"model-00003-of-00003\.gguf is missing .*has 3 files"):
        answers(written.file)


def test_a_configuration_from_elsewhere(tmp_path: Path) -> None:
    """Tensors keep their types, and the file decides whether the head is the embedding."""
    written = write(tmp_path, mixed)
    config = json.loads((written.reference / "config.json").read_text()) | {"tie_word_embeddings": False}
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "config.json").write_text(json.dumps(config))
    check(written, hf_config_path=str(tmp_path / "elsewhere"))


@pytest.mark.parametrize("family", ["gemma4", "gemma4-small", "gemma4-moe"])
def test_the_configuration_of_layers_that_differ(tmp_path: Path, family: str) -> None:
    """Some of it, such as the cap on logits, does not change which token is likeliest."""
    written = write_gguf(make_model(tmp_path / "model", family, **FAMILIES[family]), tmp_path / "gguf")
    meant = json.loads((written.reference / "config.json").read_text())
    for own in meant["per_layer_config"].values():  # which has what differs from the other layers
        own.setdefault("num_key_value_heads", meant["num_key_value_heads"])
    found = read_model_config(written.file, ModelFormOptions())
    same = {"final_logit_softcapping", "head_dim", "hidden_size_per_layer_input", "intermediate_size", "layer_types",
            "num_key_value_heads", "num_kv_shared_layers", "per_layer_config", "rope_parameters", "sliding_window",
            "use_double_wide_mlp"}  # fmt: skip
    assert {name: found[name] for name in same} == {name: meant[name] for name in same}


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_values_that_are_keys_by_a_configuration_from_elsewhere(tmp_path: Path, kind: str) -> None:
    """The matrix of keys counts as that of values, too, whether or not the configuration says so."""
    written = write_gguf(make_model(tmp_path / "model", "gemma4"), tmp_path / "gguf", lambda name: kind)
    check(written, hf_config_path=str(written.reference))


def test_keys_and_values_that_are_not_used(tmp_path: Path) -> None:
    """Gemma 4's layers that borrow keys and values may have matrices of their own, which mean nothing."""
    model = make_model(tmp_path / "model", "gemma4-small", attention_k_eq_v=False, **UNTIED)
    tensors = load_file(model / "model.safetensors")
    prefix = "model.layers.{}.self_attn.{}.weight"
    for borrowing, other in ((3, 0), (4, 1), (5, 2)):
        for part in ("k_proj", "v_proj", "k_norm"):
            tensors[prefix.format(borrowing, part)] = -tensors[prefix.format(other, part)]
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    check(write_gguf(model, tmp_path / "gguf"))


@pytest.mark.parametrize(("kind", "dtype"), [
    ("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"), ("Q4_K", "bfloat16"),
])  # fmt: skip
def test_the_type_that_auto_takes(tmp_path: Path, kind: str, dtype: str) -> None:
    file = write(tmp_path, lambda name: kind).file
    assert read_model_config(file, ModelFormOptions())["dtype"] == dtype


def test_where_answers_end(tmp_path: Path) -> None:
    """Answers end at the tokens named in the file, and at those that end a turn in a known chat format: these must be
    control tokens, except the one where tools answer Gemma 4, which converters declare as text to have it shown."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "<|im_end|>", "</s>", "<|eot_id|>", "<|endoftext|>", "<|tool_response>"],
        "tokenizer.ggml.token_type": [1, 3, 3, 4, 3, 4], "tokenizer.ggml.eos_token_id": 2,
    }  # fmt: skip
    file = write_gguf(make_model(tmp_path / "model", "llama"), tmp_path / "gguf", extra=metadata).file
    assert read_model_config(file, ModelFormOptions())["eos_token_id"] == [1, 2, 4, 5]


@pytest.mark.parametrize(("name", "reason"), [
    ("rwkv7", "supported are llama, .*mamba"), ("gptj", "llama.cpp itself only has a name for it"),
])  # fmt: skip
def test_families_that_are_not_read(tmp_path: Path, name: str, reason: str) -> None:
    file = write_metadata(tmp_path / "m.gguf", {}, name)
    with pytest.raises(
        StartupError, match=rf"m\.gguf: the architecture '{name}' is not supported.*{reason}.*safetensors"
    ):
        read_model_config(file, ModelFormOptions())


@pytest.mark.parametrize(("family", "change", "message"), [
    ("apertus", {b"xielu.beta": b"xielu.bets"},
     r"the metadata's xielu\.beta is None; expected a number, or one for each of the 3 layers"),
    ("bloom", {"bloom.attention.head_count_kv": 2},
     r"blk\.0\.attn_qkv\.bias of \[192\]: it has 192 rows; expected 128, .* of \[64, 32, 32\]"),
    ("nemotron-h", {"nemotron_h_moe.ssm.group_count": 1},
     r"blk\.0\.ssm_conv1d\.bias: shape \[176\] in the checkpoint does not begin with 152"),
    ("falcon", {"falcon.feed_forward_length": 128},
     r"blk\.0\.ffn_down\.weight.*: shape \[64, 272\] in the checkpoint, expected \[64, 136\]"),
    ("jamba", {b"blk.3.ffn_gate_inp": b"blk.2.ffn_gate_inp"}, r"layers \[1, 2\] of a Jamba model; expected evenly"),
    ("deepseek-v3", {b"blk.1.attn_v_b": b"blk.1.attn_w_b"},
     r"blk\.1\.attn_k_b\.weight of \[4, 16, 24\]: the file lacks blk\.1\.attn_v_b\.weight, which belongs to it"),
    ("gemma4-small", {"gemma4.attention.shared_kv_layers": 5},
     r"gemma4\.attention\.shared_kv_layers is 5 of 6 layers; expected that an earlier layer of the same kind"),
    ("gemma4-small", {"gemma4.feed_forward_length": [96, 96, 96, 192, 192, 96]},
     r"feed_forward_length is \[96, 96, 96, 192, 192, 96\]; expected .* twice that in the last 3 layers"),
    ("gemma4", {"gemma4.attention.head_count_kv": [4, 1, 2, 1]},
     r"head_count_kv differs between layers with sliding_attention \(\[2, 4\]\)"),
    ("gemma4", {"gemma4.attention.head_count_kv": [4, 1]},
     r"head_count_kv is \[4, 1\]; expected a number above 0, or one for each of the 4 layers"),
    ("gemma4", {"gemma4.attention.sliding_window_pattern": [True] * 4}, "gives the last layer a window"),
    ("gemma4", {"gemma4.rope.dimension_count_swa": 8},
     r"rope\.dimension_count_swa is 8, but attention\.key_length_swa is 16; they must be equal.*safetensors"),
    ("gemma4", {np.float32(1e30).tobytes(): np.float32(2).tobytes()},
     r"rope_freqs\.weight is \[1\.0, .*2\.0.*\] …; expected 16 numbers for heads of 32: first 1, then at least 1e\+29"),
    ("gemma4-moe", {struct.pack("<3Q", 64, 64, 6): struct.pack("<3Q", 64, 3, 128)},
     r"blk\.0\.ffn_gate_up_exps\.weight of \[128, 3, 64\]: expected experts with an even number of rows"),
    ("lfm2", {}, r"not a whole GGUF file: the tensor \S+ of \S+ \[.*\] would end at byte \d+, but the file has \d+"),
])  # fmt: skip
def test_files_that_contradict_themselves(
    tmp_path: Path, family: str, change: dict[Any, Any], message: str
) -> None:  # fmt: skip
    """The error names the file and what is missing, superfluous or has the wrong shape."""
    model = make_model(tmp_path / "model", family, **IN_BLOCKS[family])
    extra = {key: value for key, value in change.items() if isinstance(key, str)}
    file = write_gguf(model, tmp_path / "gguf", lambda name: "Q8_0", extra).file
    content = file.read_bytes()
    for found, other in change.items():
        content = content.replace(found, other) if isinstance(found, bytes) else content
    file.write_bytes(content if change else content[:-64])
    with pytest.raises(StartupError, match=rf"model\.gguf\b.*{message}"):
        answers(file)


def test_types_that_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(256)
    writer.add_head_count(4)
    writer.add_feed_forward_length(256)
    writer.add_context_length(64)
    writer.add_tensor("token_embd.weight", np.zeros((8, 256), np.float32))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((8, 66), np.uint8), raw_dtype=gguf.GGMLQuantizationType.IQ2_XXS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(StartupError, match=r"m\.gguf: blk\.0\.attn_q\.weight is of type IQ2_XXS.*Use .*Q4_K_M"):
        read_model_config(file, ModelFormOptions())


def test_metadata_that_are_missing(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(file, "qwen3")
    writer.add_tensor("token_embd.weight", np.zeros((8, 256), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(StartupError, match=r"m\.gguf: the metadata's qwen3\.attention\.head_count is None; expected"):
        read_model_config(file, ModelFormOptions())


@pytest.mark.parametrize(("key", "number", "message"), [
    ("attention.head_count", 0, "attention.head_count is 0; expected a number above 0"),
    ("embedding_length", 1 << 31, "embedding_length is 2147483648; it must be at most 256"),
    ("feed_forward_length", 1 << 31, "feed_forward_length is 2147483648; it must be at most 256"),
    ("attention.key_length", 1 << 31, "attention.key_length is 8589934592; it must be at most 256"),
    ("attention.key_length_swa", 1 << 31, "attention.key_length_swa is 2147483648; it must be at most 256"),
    ("embedding_length_per_layer_input", 1 << 31, "embedding_length_per_layer_input is 2147483648; it must be at most"),
    ("block_count", 1 << 31, "block_count is 2147483648; it must be at most 4096"),
    ("expert_count", 1 << 31, "expert_count is 2147483648; it must be at most 4096"),
    ("context_length", 1 << 31, "context_length is 2147483648; it must be at most 16777216"),
])  # fmt: skip
def test_dimensions_that_the_tensors_do_not_have(tmp_path: Path, key: str, number: int, message: str) -> None:
    """Memory is not allocated just because a header says so."""
    file = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(file, "qwen3")
    shape = {"attention.head_count": 4, "embedding_length": 256, "feed_forward_length": 256, "block_count": 1,
             "context_length": 64, key: number}  # fmt: skip
    for name, value in shape.items():
        writer.add_uint32(f"qwen3.{name}", value)
    writer.add_tensor("token_embd.weight", np.zeros((8, 256), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(StartupError, match=rf"m\.gguf: .*qwen3\.{message}"):
        read_model_config(file, ModelFormOptions())


def test_a_tensor_too_many_or_too_few(tmp_path: Path) -> None:
    """The error names the tensor and the file."""
    model = make_model(tmp_path / "model", "llama")
    file = write_gguf(model, tmp_path / "gguf").file
    content = file.read_bytes()
    file.write_bytes(content.replace(b"blk.1.attn_output.weight", b"blk.1.attn_unknown.weight"[:24]))
    with pytest.raises(StartupError, match=r"model\.gguf: the model has no parameter for .*blk\.1\.attn_unknown"):
        answers(file)
    file.write_bytes(content.replace(b"llama.block_count\x05\0\0\0\x03", b"llama.block_count\x05\0\0\0\x04"))
    with pytest.raises(StartupError, match=r"model\.gguf: the checkpoint lacks layers\.3\."):
        answers(file)


def test_formats_of_folders_do_not_read_it(tmp_path: Path) -> None:
    file = write_gguf(make_model(tmp_path / "model", "llama"), tmp_path / "gguf").file
    with pytest.raises(StartupError, match=r"no .*safetensors"):
        create_format(file, LoadOptions(load_format="safetensors")).files()
    (tmp_path / "empty").mkdir()
    with pytest.raises(StartupError, match=r"--load-format gguf: .*empty has no \*\.gguf file"):
        create_format(tmp_path / "empty", LoadOptions(load_format="gguf"))


def test_one_number_for_all_layers(tmp_path: Path) -> None:
    """Of xIELU: as llama.cpp reads it, too."""
    file = write_metadata(tmp_path / "m.gguf", {"apertus.block_count": 3, "xielu.beta": 0.5}, "apertus")
    assert Facts(read_gguf(file)).float_by_layer("xielu.beta") == [0.5] * 3
