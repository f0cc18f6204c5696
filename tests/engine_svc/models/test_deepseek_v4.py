"""DeepSeek V4: log-probabilities are those of Transformers' model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from engine_svc.attention.compressed_step import Compression
from engine_svc.models.registry import config_for
from engine_svc.requests.request import GenerationRequest
from quire.errors import StartupError
from tests.support.deepseek_v4 import PUBLISHED, TEXT, make_deepseek_v4, publish
from tests.support.exact_answers import check_answers_of
from tests.support.replaying_drafter import ReplayingDrafter
from tests.support.run_engine import GREEDY, random_prompts, run, run_requests, running_engine
from tests.support.staged_executor import StagedExecutor
from tests.support.tensor_executor import TensorExecutor
from tests.support.tiny_models import VOCAB_SIZE

ANSWER = 20
# Shorter than a window and any entry, with entries that are not chosen among yet, and with ones that are.
PROMPTS = random_prompts(1, 3, 17, 90)
SAMPLING = replace(GREEDY, max_tokens=ANSWER, logprobs=4)
E2M1 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("v4")
    return folder, make_deepseek_v4(folder)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"cpu_kernels": "torch", "block_size": 32}, {"executor": TensorExecutor(), "tensor_parallel_size": 2},
        {"executor": StagedExecutor(), "pipeline_parallel_size": 2},
    ],
    ids=["native", "torch", "ranks", "stages"],
)  # fmt: skip
def test_log_probabilities(made: tuple[Path, Any], options: dict[str, Any]) -> None:
    """In several chunks; prompts are found again, with the cells of their last window."""
    folder, model = made
    with running_engine(folder, max_num_batched_tokens=33, cpu_threads=1, **options) as engine:
        found = [run(engine, PROMPTS, SAMPLING) for _ in range(2)]
        assert engine.load().counters.prefix_cache_hits > 0
    for each in found:
        check_answers_of(model, PROMPTS, each, ANSWER)


def test_preemption(made: tuple[Path, Any]) -> None:
    folder, model = made
    with running_engine(folder, 60, max_num_batched_tokens=33, max_model_len=160) as engine:
        found = run(engine, [*PROMPTS, *PROMPTS], SAMPLING)
        assert engine.load().counters.preemptions > 0
    check_answers_of(model, [*PROMPTS, *PROMPTS], found, ANSWER)


def test_drafts(made: tuple[Path, Any]) -> None:
    """Entries that were made of drafts which were not taken are made again."""
    folder, model = made
    asked = [GenerationRequest(str(index), prompt, SAMPLING) for index, prompt in enumerate(PROMPTS)]
    drafter = ReplayingDrafter(VOCAB_SIZE)
    with running_engine(folder, drafter=drafter) as engine:
        drafter.know(asked, [[output.token_ids] for (output,) in run_requests(engine, asked)])
        found = run_requests(engine, asked)
    assert drafter.num_drafts > drafter.num_right > 2 * len(asked)
    check_answers_of(model, PROMPTS, found, ANSWER)


def test_as_published(tmp_path: Path) -> None:
    """Its names and fields, with layers for multi-token prediction; entries of 4 and of 128 tokens."""
    model = make_deepseek_v4(tmp_path, **PUBLISHED)
    publish(tmp_path)
    assert "layers.0.attn.kv_norm.weight" in load_file(tmp_path / "model.safetensors")
    prompts = random_prompts(100, 260)
    with running_engine(tmp_path, max_num_batched_tokens=120) as engine:
        check_answers_of(model, prompts, run(engine, prompts, SAMPLING), ANSWER)


def test_quantized_as_published(tmp_path: Path) -> None:
    """E4M3 with a scale for each 128 by 128 values, and E2M1 experts with one for each 32; scales are powers of two."""
    model = make_deepseek_v4(tmp_path, **PUBLISHED)
    for name, tensor in model.named_parameters():
        if form := form_of(name.split(".")):
            tensor.data.copy_(form.values(*form.codes(tensor.data)))
    model.save_pretrained(tmp_path)
    publish(tmp_path)
    saved: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        if form := form_of(name.split(".")):
            saved[name], scale = form.codes(tensor)
            saved[name.removesuffix("weight") + "scale"] = scale.to(torch.float8_e8m0fnu)
        else:
            saved[name] = tensor
    assert {each.dtype for each in saved.values()} >= {torch.int8, torch.float8_e4m3fn, torch.float32}
    save_file(saved, tmp_path / "model.safetensors")
    raw = json.loads((tmp_path / "config.json").read_text()) | {"expert_dtype": "fp4", "quantization_config": {
        "quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128],
        "activation_scheme": "dynamic",
    }}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with running_engine(tmp_path) as engine:
        check_answers_of(model, PROMPTS, run(engine, PROMPTS, SAMPLING), ANSWER)


class Fp8:
    """A scale for each 128 outputs of a matrix that has no more than 128 inputs."""

    @staticmethod
    def codes(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        blocks = Fp8.blocks(tensor)
        scale = power_of_two(blocks.abs().amax((1, 2)) / 448)[:, None]
        return (blocks / scale[..., None]).flatten(0, 1).to(torch.float8_e4m3fn), scale

    @staticmethod
    def values(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (Fp8.blocks(codes.float()) * scale[..., None]).flatten(0, 1)

    @staticmethod
    def blocks(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unflatten(0, (-1, min(128, len(tensor))))


class Fp4:
    """Two values in a byte, the first in its lower half."""

    @staticmethod
    def codes(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        groups = tensor.unflatten(-1, (-1, 32))
        scale = power_of_two(groups.abs().amax(-1) / 6)
        codes = (groups / scale[..., None]).flatten(-2)[..., None].sub(E2M1).abs().argmin(-1)
        return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8).view(torch.int8), scale

    @staticmethod
    def values(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        both = codes.view(torch.uint8).int()
        found = E2M1[torch.stack((both & 15, both >> 4), -1).flatten(-2)]
        return (found.unflatten(-1, (-1, 32)) * scale[..., None]).flatten(-2)


def power_of_two(values: torch.Tensor) -> torch.Tensor:
    return values.log2().ceil().exp2()


QUANTIZED = {
    "q_a_proj", "q_b_proj", "o_a_proj", "o_b_proj", "wq_a", "wq_b", "wo_a", "wo_b", "kv_proj", "wkv",
    "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3",
}  # fmt: skip


def form_of(name: list[str]) -> type[Fp8] | type[Fp4] | None:
    """The form of a matrix by its name, Transformers' or published."""
    if "experts" in name:
        return Fp4
    is_compressor = "compressor" in name and name[-2] not in ("q_b_proj", "wq_b")
    return Fp8 if not is_compressor and QUANTIZED & set(name[-2:]) else None


def test_each_part_changes_something(made: tuple[Path, Any], tmp_path: Path) -> None:
    """Otherwise, the tests above would pass without it."""
    changed: Iterable[dict[str, Any]] = (
        {"swiglu_limit": 10.0}, {"index_topk": 64}, {"hc_sinkhorn_iters": 1}, {"compress_rope_theta": 100.0},
    )  # fmt: skip
    with running_engine(made[0]) as engine:
        found = run(engine, PROMPTS, SAMPLING)
    for number, changes in enumerate(changed):
        with pytest.raises(AssertionError):
            check_answers_of(make_deepseek_v4(tmp_path / str(number), **changes), PROMPTS, found, ANSWER)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache_dtype": "fp8"}, "does not support --kv-cache-dtype fp8"),
        ({"attention_backend": "native"}, "does not support --attention-backend native"),
        ({"batch_invariant": True}, "does not support --batch-invariant"),
        ({"enable_prompt_embeds": True}, "does not support --enable-prompt-embeds"),
        ({"disable_sliding_window": True}, "does not support --disable-sliding-window"),
        (
            {"executor": TensorExecutor(), "tensor_parallel_size": 2, "decode_context_parallel_size": 2},
            "does not support --decode-context-parallel-size",
        ),
        ({"block_size": 24}, "--block-size 24 is neither a multiple nor a part of 16"),
    ],
)
def test_what_is_refused(made: tuple[Path, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(StartupError, match=message), running_engine(made[0], **options):
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": None, "compress_ratios": [0, 4, 128, 7, 0]}, "7 is not a kind of attention"),
        ({"compress_rates": {"heavily_compressed_attention": 0}}, "compression rate is 0"),
        ({"partial_rotary_factor": 0.75}, "24 values of heads are rotated; expected an even number of at most 16"),
        ({"o_groups": 0}, "groups is 0"),
        ({"hc_mult": "4"}, "count is '4'"),
    ],
    ids=["kinds", "rates", "rotation", "groups", "streams"],
)
def test_what_is_not_supported(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        config_for(TEXT | {"architectures": ["DeepseekV4ForCausalLM"]} | changes)


def test_default_layers() -> None:
    """As in DeepSeek-V4-Pro: heavily compressed first, then in turn."""
    raw = TEXT | {"architectures": ["DeepseekV4ForCausalLM"], "layer_types": None, "compress_rates": None}
    config = config_for(raw)
    assert config.compression is not None
    heavy, sparse = Compression(128, is_sparse=False), Compression(4, is_sparse=True)
    assert config.compression.layers == (heavy, heavy, heavy, sparse, heavy)
    gates = {moe.activation for moe in config.moe if moe}
    assert [each.gate_limit for each in gates] == [pytest.approx(0.3 / (1 + math.exp(-0.3)))]  # type: ignore[union-attr]


def test_tables_of_unknown_experts(tmp_path: Path) -> None:
    make_deepseek_v4(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.4.ffn.gate.tid2eid"][3, 1] = 6
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(StartupError, match="tid2eid: experts from 0 to 6, but there are 6"), running_engine(tmp_path):
        pass


def test_random_weights(made: tuple[Path, Any]) -> None:
    with running_engine(made[0], load_format="dummy") as engine:
        assert all(len(output.token_ids) == ANSWER for (output,) in run(engine, PROMPTS, SAMPLING))
