"""Gemma 3n: configurations without or with odd fields, rows that are left out, less precision, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from engine_svc.models.registry import config_for
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.models.test_exactness import check_close
from tests.support.exact_answers import check_answers
from tests.support.native import needs_native
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine
from tests.support.staged_executor import StagedExecutor

PROMPTS, SAMPLING = random_prompts(1, 20, 45), replace(GREEDY, max_tokens=12, logprobs=4)
SIZES: dict[str, Any] = {
    "architectures": ["Gemma3nForCausalLM"], "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96,
    "num_attention_heads": 4, "max_position_embeddings": 256,
}  # fmt: skip


def check(folder: Path, like: Path | None = None, **options: Any) -> None:
    with running_engine(folder, **options) as engine:
        found = run(engine, PROMPTS, SAMPLING)
    check_answers(like or folder, PROMPTS, found, 12)


def changed(folder: Path, to: Path, changes: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | changes))
    found = load_file(to / "model.safetensors")
    save_file(found | tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


def test_as_older_versions_of_transformers_write_it(model_folder: ModelFolder, tmp_path: Path) -> None:
    """With bases of rotations in fields of their own, and weights of keys and values that are another layer's."""
    folder = model_folder("gemma3n")
    old = {"rope_parameters": None, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": None}
    unused = {f"model.layers.4.self_attn.{part}.weight": torch.ones(1) for part in ("k_proj", "v_proj", "k_norm")}
    check(changed(folder, tmp_path / "model", old, unused), folder)


def test_without_layers_that_borrow(model_folder: ModelFolder) -> None:
    """Then the last layer computes all rows, and one stage of it is sparse in half of its features on each rank."""
    check(model_folder("gemma3n", num_kv_shared_layers=0, num_hidden_layers=3, altup_correct_scale=False,
                       layer_types=["sliding_attention", "full_attention", "full_attention"],
                       intermediate_size=96, activation_sparsity_pattern=[0.0, 0.0, 0.7]))  # fmt: skip


def test_layers_that_borrow_compute_only_rows_that_are_sampled_from(
    model_folder: ModelFolder, computed: list[int]
) -> None:
    with running_engine(model_folder("gemma3n"), enforce_eager=True) as engine:
        computed.clear()
        run(engine, random_prompts(9, 7), replace(GREEDY, max_tokens=1))
    assert computed == [16, 16, 16, 2, 2, 2]


@needs_native
def test_a_request_depends_on_itself_alone(model_folder: ModelFolder) -> None:
    """What torch computes of streams and gates is equal bit by bit too, in large batches and in small chunks."""
    folder, options = model_folder("gemma3n"), {"batch_invariant": True, "enable_prefix_caching": False}
    with running_engine(folder, cpu_threads=1, **options) as engine:
        together = run(engine, PROMPTS, SAMPLING)
        assert run(engine, PROMPTS[1:2], SAMPLING)[0][0].logprobs == together[1][0].logprobs
    with running_engine(folder, cpu_threads=2, max_num_batched_tokens=7, max_num_seqs=2, **options) as engine:
        chunked = run(engine, PROMPTS, SAMPLING)
    assert [each.logprobs for (each,) in chunked] == [each.logprobs for (each,) in together]


@pytest.mark.parametrize(("options", "tolerance"), [({"dtype": "bfloat16"}, 0.12), ({"quantization": "int8"}, 0.3)])
def test_less_precision_is_close(
    model_folder: ModelFolder, tmp_path: Path, options: dict[str, Any], tolerance: float
) -> None:
    """Scores, which are not scaled, are made milder: rounding would change which single key a query sees."""

    def milder(family: str, **changes: Any) -> Path:
        folder = shutil.copytree(model_folder(family, **changes), tmp_path / "model")
        found = load_file(folder / "model.safetensors")
        for name, values in found.items():
            if name.endswith("q_norm.weight"):
                values.mul_(0.2)
        save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    check_close(milder, "gemma3n", options, tolerance)


def test_which_layers_are_sparse() -> None:
    deep = config_for(SIZES | {"num_hidden_layers": 30, "num_kv_shared_layers": 10})
    assert [*deep.gate_cutoffs] == [*range(10)]
    assert deep.gate_cutoffs[0] == pytest.approx(1.6448536)
    assert deep.borrowed == {layer: 19 if layer % 5 == 4 else 18 for layer in range(20, 30)}
    assert not config_for(SIZES | {"num_hidden_layers": 10, "num_kv_shared_layers": 5}).gate_cutoffs


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"altup_active_idx": 1}, "altup_active_idx is 1; only 0 is supported"),
        ({"intermediate_size": [96] * 4}, "intermediate_size has 4 entries for 5 layers"),
        ({"activation_sparsity_pattern": [0.5] * 6}, "activation_sparsity_pattern has 6 entries for 5 layers"),
        ({"activation_sparsity_pattern": [1.0] * 5}, "an invalid value for Gemma3nForCausalLM: p must be in the range"),
        ({"num_kv_shared_layers": 1, "layer_types": ["sliding_attention"] * 4 + ["full_attention"]}, "lacks"),
        ({"laurel_rank": 0}, "rank is 0; expected a whole number of at least 1"),
    ],
)
def test_odd_configurations(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        config_for(SIZES | {"num_hidden_layers": 5, "num_kv_shared_layers": 0} | changes)


def test_a_pipeline_is_refused(model_folder: ModelFolder) -> None:
    with (
        pytest.raises(StartupError, match="--pipeline-parallel-size 2: layers of Gemma3nForCausalLM need more"),
        running_engine(model_folder("gemma3n"), executor=StagedExecutor(), pipeline_parallel_size=2),
    ):
        pass
