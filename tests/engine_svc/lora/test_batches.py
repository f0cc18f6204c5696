"""Adapters side by side: each sequence gets the same as alone, however the work is chunked, sharded and recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_svc.runner.native_calls import NotedSteps
from tests.support.lora import AdapterExecutor, MadeAdapter, adapter_executor, merge, modules_of, write_adapter
from tests.support.native import needs_native
from tests.support.quantized import nf4, quantized_model
from tests.support.run_engine import random_prompts
from tests.support.tiny_models import make_model

PROMPTS = random_prompts(3, 18, 7, 1, 12, 5, 9, 4)
RANKS = (1, 64, 5, 16)
SLOTS = [1, 0, 2, 3, 1, 4, 0, 2]
MODULES = ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


class Served:
    """A base model and several adapters for it."""

    def __init__(self, folder: Path) -> None:
        self.base = make_model(folder / "base", "qwen3-moe", num_hidden_layers=2)
        with adapter_executor(self.base) as served:
            modules = modules_of(self.base, served.spec.adapter_modules, MODULES)
        self.adapters = [write_adapter(folder / str(rank), modules, rank=rank, seed=rank) for rank in RANKS]

    def tokens(self, slots: list[int], **options: Any) -> list[list[int]]:
        with adapter_executor(self.base, **options) as executor:
            self.place(executor)
            return executor.generate(PROMPTS, slots)

    def place(self, executor: AdapterExecutor) -> None:
        assert set(executor.read(*(each.folder for each in self.adapters)).values()) == {""}
        executor.place({slot: each.folder for slot, each in enumerate(self.adapters, 1)})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def executor(served: Served) -> Iterator[AdapterExecutor]:
    with adapter_executor(served.base) as executor:
        served.place(executor)
        yield executor


@pytest.fixture(scope="module")
def together(executor: AdapterExecutor) -> list[list[int]]:
    return executor.generate(PROMPTS, SLOTS)


def test_each_sequence_is_what_it_is_alone(executor: AdapterExecutor, together: list[list[int]]) -> None:
    alone = [executor.generate([prompt], [slot])[0] for prompt, slot in zip(PROMPTS, SLOTS, strict=True)]
    assert together == alone
    assert len({tuple(executor.generate([PROMPTS[0]], [slot])[0]) for slot in range(5)}) == 5


def test_ranks_of_one_to_sixty_four_are_those_of_merged_weights(
    served: Served, together: list[list[int]], tmp_path: Path
) -> None:
    for slot, adapter in enumerate(served.adapters, 1):
        with adapter_executor(merge(served.base, adapter, tmp_path / str(slot)), enable_lora=False) as merged:
            expected = merged.generate(PROMPTS, [0] * len(PROMPTS))
        assert [(a, b) for a, b, own in zip(together, expected, SLOTS, strict=True) if own == slot and a != b] == []


def test_drafts_are_verified_with_their_sequences_adapters(
    executor: AdapterExecutor, together: list[list[int]]
) -> None:
    """Sequences have several rows or one, and every third draft token is wrong."""
    step = executor.step

    def draft(slot: int, known: int) -> list[int]:
        guessed = together[slot][known : known + slot % 4]
        return [token_id ^ 1 if (known + place) % 3 == 0 else token_id for place, token_id in enumerate(guessed)]

    assert executor.generate(PROMPTS, SLOTS, draft=draft) == together
    assert executor.generate(PROMPTS[3:4], SLOTS[3:4], draft=lambda _, known: together[3][known : known + 7]) == [
        together[3]
    ]
    assert executor.step - step < 2 * len(together[0])


@needs_native
def test_recorded_steps_are_those_of_the_layers(
    served: Served, executor: AdapterExecutor, together: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = []
    run = NotedSteps.run

    def note(self: NotedSteps, *arguments: Any) -> torch.Tensor | None:
        replayed.append(run(self, *arguments))
        return replayed[-1]

    monkeypatch.setattr(NotedSteps, "run", note)
    assert executor.generate(PROMPTS, SLOTS) == together
    assert len([each for each in replayed if each is not None]) >= 31
    assert served.tokens(SLOTS, enforce_eager=True) == together


@pytest.mark.parametrize("fully_sharded", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_ranks(served: Served, together: list[list[int]], fully_sharded: bool) -> None:
    assert served.tokens(SLOTS, tensor_parallel_size=2, fully_sharded_loras=fully_sharded) == together


@pytest.mark.parametrize("options", [{"cpu_kernels": "torch"}, {"max_lora_rank": 80, "max_loras": 7}], ids=str)
def test_whatever_adds_it(served: Served, together: list[list[int]], options: dict[str, Any]) -> None:
    assert served.tokens(SLOTS, **options) == together


def test_a_slot_gets_another_adapter(served: Served, executor: AdapterExecutor) -> None:
    folders = [each.folder for each in served.adapters]
    expected = executor.generate([PROMPTS[0]], [2])
    executor.place({1: folders[1]})
    assert executor.generate([PROMPTS[0]], [1]) == expected
    executor.place({1: folders[0]})
    assert executor.generate([PROMPTS[0]], [1]) != expected


def broken(adapter: MadeAdapter, folder: Path, **changes: Any) -> Path:
    """Writes a copy of the adapter with tensors replaced, or removed where the value is None."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text((adapter.folder / "adapter_config.json").read_text())
    tensors = {**load_file(adapter.folder / "adapter_model.safetensors"), **changes}
    kept = {name: each for name, each in tensors.items() if each is not None}
    save_file(kept, folder / "adapter_model.safetensors")
    return folder


def test_what_cannot_be_read_fails_alone(served: Served, executor: AdapterExecutor, tmp_path: Path) -> None:
    good = served.adapters[0]
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    wide = broken(good, tmp_path / "wide", **{name: torch.zeros(1, 65)})
    cut = broken(good, tmp_path / "cut")
    file = cut / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    found = executor.read(wide, cut, good.folder)
    assert found[good.folder] == ""
    assert str(wide) in found[wide]
    assert name in found[wide]
    assert "[1, 65]" in found[wide]
    assert str(cut) in found[cut]
    executor.place({1: good.folder})


def test_quantized_base(tmp_path: Path) -> None:
    """The base stays quantized; the output is that of its dequantized weights plus the adapter."""
    original = make_model(tmp_path / "original", "llama")
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    model = quantized_model(original, tmp_path, nf4, settings)
    with adapter_executor(model.packed) as served:
        modules = modules_of(original, served.spec.adapter_modules, ("q_proj", "o_proj", "up_proj", "down_proj"))
        adapter = write_adapter(tmp_path / "adapter", modules)
        served.read(adapter.folder)
        served.place({2: adapter.folder})
        found = served.generate(PROMPTS[:3], [2, 0, 2])
    with adapter_executor(merge(model.plain, adapter, tmp_path / "merged"), enable_lora=False) as merged:
        expected = merged.generate(PROMPTS[:3], [0, 0, 0])
    assert (found[0], found[2]) == (expected[0], expected[2])
    assert found[1] != expected[1]


def test_scales_and_ranks_of_patterns(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", "llama", num_hidden_layers=2)
    with adapter_executor(base) as served:
        modules = modules_of(base, served.spec.adapter_modules, ("q_proj", "down_proj"))
        own = {"model.layers.1.self_attn.q_proj": 3}
        made = [
            write_adapter(tmp_path / "patterns", modules, rank_pattern=own, alpha_pattern=dict.fromkeys(own, 20)),
            write_adapter(tmp_path / "rslora", modules, use_rslora=True, lora_alpha=4, seed=1, dtype=torch.float16),
        ]
        served.read(*(each.folder for each in made))
        served.place({1: made[0].folder, 2: made[1].folder})
        found = served.generate(PROMPTS[:2], [1, 2])
    assert json.loads((made[0].folder / "adapter_config.json").read_text())["rank_pattern"] == own
    for index, adapter in enumerate(made):
        with adapter_executor(merge(base, adapter, tmp_path / f"merged-{index}"), enable_lora=False) as merged:
            assert merged.generate([PROMPTS[index]], [0])[0] == found[index]


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_whole_matrices_of_head_and_embedding(tmp_path: Path, ranks: int) -> None:
    base = make_model(tmp_path / "base", "qwen2", tie_word_embeddings=False, num_hidden_layers=2)
    tensors = load_file(base / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    names = {"lm_head.weight": "lm_head", "model.embed_tokens.weight": "model.embed_tokens"}
    whole = {module: torch.randn(tensors[name].shape, generator=generator) / 3 for name, module in names.items()}
    adapter = write_adapter(
        tmp_path / "adapter", {"model.layers.0.mlp.down_proj": (64, 96)}, whole=whole,
        modules_to_save=["lm_head", "embed_tokens"],
    )  # fmt: skip
    merged = merge(base, adapter, tmp_path / "merged")
    changed = load_file(merged / "model.safetensors") | {name: whole[module] for name, module in names.items()}
    save_file(changed, merged / "model.safetensors", metadata={"format": "pt"})
    with adapter_executor(base, tensor_parallel_size=ranks) as served:
        served.read(adapter.folder)
        served.place({2: adapter.folder})
        found = served.generate(PROMPTS[:3], [2, 0, 2])
        plain = served.generate(PROMPTS[:3], [0, 0, 0])
    with adapter_executor(merged, enable_lora=False) as executor:
        expected = executor.generate(PROMPTS[:3], [0, 0, 0])
    assert found == [expected[0], plain[1], expected[2]]
    assert found != plain
