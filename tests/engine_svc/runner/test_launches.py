"""How many kernels a GPU launches per layer: each launch takes some microseconds, whatever it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_svc.models.decoder_layer import DecoderLayer
from engine_svc.ops.triton import TritonOps
from engine_svc.plan import NewSequence, SamplingPlan, ScheduledSequence, StepPlan
from engine_svc.runner.recorded import Capture, Forward, RecordedSteps, Replay
from engine_svc.runner.runner import Runner
from tests.support.launches import Launches
from tests.support.recorder import record_prompts
from tests.support.run_engine import GREEDY, running_engine
from tests.support.tiny_models import make_model

# Launches of a layer like Qwen3-0.6B's, at smaller sizes.
BEFORE_ATTENTION = ["_norm_kernel", "linear", "_rotate_kernel"]
DECODED, PREFILLED = ["_decode_kernel", "_combine_kernel"], ["_prefill_kernel"]
BEHIND_ATTENTION = ["linear", "_norm_kernel", "linear", "_gated_kernel", "linear"]
# For prompts, the last layer continues with the last row of each sequence: of the query and of the residual.
LAST = ["index", *DECODED, "linear", "index", *BEHIND_ATTENTION[1:]]
ALONE = ["_single_row_kernel", "_rotate_kernel", *DECODED, *["_single_row_kernel"] * 3]


def in_int8(names: list[str]) -> list[str]:
    """Returns the launches with weights and rows in int8."""
    return [
        each for name in names for each in (["_quantize_kernel", "_multiply_kernel"] if name == "linear" else [name])
    ]


def layers_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, **options: Any) -> list[list[str]]:
    """Returns the launches of each layer in each step: three prompts, then three, two and one decoding sequences."""
    folder = make_model(tmp_path / family, family, num_hidden_layers=2)
    monkeypatch.setattr("engine_svc.loader.model.create_ops", lambda *_: TritonOps())
    launches, runners, layers = Launches(monkeypatch), list[Runner](), list[list[str]]()
    forward, allocate = DecoderLayer.forward, Runner.allocate

    def noted(layer: DecoderLayer, *given: Any) -> torch.Tensor:
        launches.names = []
        with launches:
            hidden = forward(layer, *given)
        layers.append([*launches.names])
        return hidden

    def allocated(runner: Runner, *given: int) -> None:
        allocate(runner, *given)
        runners.append(runner)

    monkeypatch.setattr(Runner, "_run_prompt", lambda *_: None)  # a warm-up; the interpreter compiles nothing
    monkeypatch.setattr(DecoderLayer, "forward", noted)
    monkeypatch.setattr(Runner, "allocate", allocated)
    with running_engine(folder, attention_backend="triton", enforce_eager=True, max_num_seqs=3, **options):
        layers.clear()
        plan = SamplingPlan(GREEDY)
        sequences = [NewSequence(slot, [5] * 9, 9, 0, [[slot]], plan) for slot in range(3)]
        runners[0].step(StepPlan(1, sequences, [ScheduledSequence(slot, 0, 9, 1, []) for slot in range(3)]))
        for done, count in enumerate((3, 2, 1)):
            scheduled = [ScheduledSequence(slot, 9 + done, 1, 1, []) for slot in range(count)]
            runners[0].step(StepPlan(2 + done, [], scheduled))
    return layers


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"quantization": "int8"}, {"kv_cache_dtype": "fp8"}], ids=str)
def test_a_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    layers = layers_of_steps(tmp_path, monkeypatch, "qwen3", **options)
    is_int8 = "quantization" in options
    of_products = in_int8 if is_int8 else list
    rests = [PREFILLED + BEHIND_ATTENTION, LAST, DECODED + BEHIND_ATTENTION]
    prefilled, last, decoded = (of_products(BEFORE_ATTENTION + rest) for rest in rests)
    alone = [f"_coded_row{name.removeprefix('_single_row')}" if is_int8 and "row" in name else name for name in ALONE]
    of_two = decoded if is_int8 else alone
    assert layers == [prefilled, last, *[decoded] * 2, *[of_two] * 2, *[alone] * 2]


@pytest.mark.slow
def test_a_layer_of_latent_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers a dense layer, the first of the two, and one with experts."""
    layers = layers_of_steps(tmp_path, monkeypatch, "deepseek-v2")
    before = ["_norm_kernel", "linear", "_norm_kernel", "linear", "linear"]
    turned = ["_norm_kernel", "_rotate_pairs_kernel", "bmm", "_rotate_pairs_kernel", "_write_kernel"]
    dense = [*before, *turned, *DECODED, "bmm", "linear", "_norm_kernel", "linear", "_gated_kernel", "linear"]
    assert layers[2] == dense
    assert layers[6] == ["_single_row_kernel" if name == "linear" else name for name in dense]
    experts = ["linear", "_choose_kernel", "_sort_kernel", "_grouped_kernel", "_gated_kernel", "_grouped_kernel"]
    shared = ["_add_kernel", "linear", "_gated_kernel", "linear", "add_"]
    assert layers[3] == [*dense[: dense.index("_gated_kernel") - 1], *experts, *shared]


class Noted(Capture):
    """Counts a replay as one launch, and records the launches that it stands for."""

    def __init__(self, launches: Launches) -> None:
        self._launches = launches
        self.recorded: list[list[str]] = []

    def __call__(self, forward: Forward) -> tuple[Replay, torch.Tensor]:
        self._launches.names.clear()
        with self._launches:
            hidden = forward()
        self.recorded.append([*self._launches.names])
        self._launches.names.clear()
        return lambda: self._launches.names.append("replay"), hidden


def test_a_recorded_step_is_a_copy_and_a_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the recording, a single kernel looks up token ids and unpacks the block tables of both groups of layers."""
    folder = make_model(tmp_path / "gemma2", "gemma2", num_hidden_layers=2)
    launches, runners = Launches(monkeypatch), list[Runner]()
    record_prompts(monkeypatch)
    capture, allocate, run = Noted(launches), Runner.allocate, RecordedSteps.run

    def allocated(runner: Runner, *given: int) -> None:
        allocate(runner, *given)
        runner.make_graphs(capture)
        runners.append(runner)

    def noted(recorded: RecordedSteps, *given: Any) -> torch.Tensor | None:
        with launches:
            return run(recorded, *given)

    monkeypatch.setattr(Runner, "allocate", allocated)
    monkeypatch.setattr(RecordedSteps, "run", noted)
    with running_engine(folder, attention_backend="triton", max_num_seqs=4):
        plan = SamplingPlan(GREEDY)
        blocks = [[[2 * slot, 2 * slot + 1], [6 + 2 * slot, 7 + 2 * slot]] for slot in (0, 1, 2)]
        sequences = [NewSequence(slot, [5] * 20, 20, 19, blocks[slot], plan) for slot in (0, 1, 2)]
        runners[0].step(StepPlan(1, sequences, [ScheduledSequence(slot, 19, 1, 1, []) for slot in (0, 1, 2)]))
    assert launches.names == ["copy_", "replay"]
    assert [names.count("_unpack_kernel") for names in capture.recorded] == [1, 1, 1]
    assert {names[0] for names in capture.recorded} == {"_unpack_kernel"}
