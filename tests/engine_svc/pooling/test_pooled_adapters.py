"""Pooled outputs with adapters equal those of Transformers' models with the adapters merged into their weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.engine_svc.pooling.test_pooled_models import close
from tests.support.lora import merge, modules_of, write_adapter
from tests.support.pooled_models import make_pooled, place_adapters, pool, reference, run, runner_of, sequence
from tests.support.run_engine import random_prompts

PROMPTS = random_prompts(5, 17, 40)
LLAMAS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# By family: the modules that adapters change, by the ends of their names.
CASES = {
    "bert": ("query", "key", "value", "dense"), "roberta": ("query", "value", "word_embeddings"),
    "distilbert": ("q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"), "modernbert": ("Wqkv", "Wo", "Wi"),
    "gte": ("qkv_proj", "o_proj", "up_gate_proj", "down_proj"),
    "nomic-bert": ("Wqkv", "out_proj", "fc11", "fc12", "fc2"),
    "qwen3": LLAMAS,
}  # fmt: skip
OPTIONS = {"enable_lora": True, "max_loras": 3, "max_lora_rank": 16}


@pytest.mark.parametrize("family", CASES)
def test_families(tmp_path: Path, family: str) -> None:
    base = make_pooled(tmp_path / "base", family, "Model")
    runner = runner_of(base, **OPTIONS)
    named = transformers.AutoModel.from_pretrained(base).named_modules()
    linear = {name for name, module in named if isinstance(module, torch.nn.Linear) and "pooler" not in name}
    assert linear <= runner.spec().adapter_modules.keys()
    modules = modules_of(base, runner.spec().adapter_modules, CASES[family])
    adapters = [write_adapter(tmp_path / str(rank), modules, rank=rank, seed=rank, size=0.5) for rank in (4, 9)]
    plain = run(runner, [sequence(each, "token_embed") for each in PROMPTS])
    place_adapters(runner, {1: adapters[0].folder, 3: adapters[1].folder})
    found = run(
        runner,
        [sequence(each, "token_embed", adapter_slot=slot) for each, slot in zip(PROMPTS, (1, 0, 3), strict=True)],
    )
    for index, adapter in ((0, adapters[0]), (2, adapters[1])):
        merged = merge(base, adapter, tmp_path / f"merged-{index}")
        close([found[index]], reference(merged, [PROMPTS[index]], transformers.AutoModel))
    assert torch.equal(found[1], plain[1])
    assert torch.equal(run(runner, [sequence(PROMPTS[0], "token_embed")])[0], plain[0])


@pytest.mark.parametrize(("family", "head"), [("qwen3", ("score",)), ("bert", ("classifier", "bert.pooler.dense"))])
def test_an_adapter_with_a_head_of_its_own(tmp_path: Path, family: str, head: Sequence[str]) -> None:
    """As PEFT saves those of classifiers: whole matrices and biases, which replace the base's."""
    base = make_pooled(tmp_path / "base", family, "ForSequenceClassification")
    runner = runner_of(base, **OPTIONS)
    modules = modules_of(base, runner.spec().adapter_modules, CASES[family][:2])
    own = {name: torch.randn_like(each) for name, each in load_file(base / "model.safetensors").items()}
    own = {name: each for name, each in own.items() if name.rpartition(".")[0] in head}
    low_rank = {"score": (3, 64)} if family == "qwen3" else {}
    adapter = write_adapter(tmp_path / "own", modules, size=0.5, whole=own)
    plain = write_adapter(tmp_path / "plain", modules | low_rank, seed=1, size=0.5)
    place_adapters(runner, {1: adapter.folder, 2: plain.folder})
    given = [sequence(each, "classify", adapter_slot=slot) for each, slot in zip(PROMPTS, (1, 0, 2), strict=True)]
    merged = merge(base, adapter, tmp_path / "merged")
    save_file(load_file(merged / "model.safetensors") | own, merged / "model.safetensors", {"format": "pt"})
    folders = merged, base, merge(base, plain, tmp_path / "merged-plain")
    auto = transformers.AutoModelForSequenceClassification
    expected = [reference(folder, [each], auto)[0] for folder, each in zip(folders, PROMPTS, strict=True)]
    close(run(runner, given), expected)


def test_a_sequence_that_no_recording_fits(tmp_path: Path) -> None:
    base = make_pooled(tmp_path / "base", "bert", "Model")
    runner = runner_of(base, max_num_batched_tokens=16, **OPTIONS)
    adapter = write_adapter(tmp_path / "adapter", modules_of(base, runner.spec().adapter_modules, CASES["bert"]))
    place_adapters(runner, {2: adapter.folder})
    given = [sequence(each, "embed", adapter_slot=2) for each in PROMPTS]
    found = run(runner, given[:1]) + run(runner, given[1:])
    assert runner._recorded[True] is not None  # for the first
    hidden = reference(merge(base, adapter, tmp_path / "merged"), PROMPTS, transformers.AutoModel)
    close(found, [pool(each, "CLS") for each in hidden])
