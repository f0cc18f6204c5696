"""CPU steps replayed as recorded kernel calls have bitwise the same results as the layers."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from engine_svc.core.engine import Engine
from engine_svc.native.calls import NotRecordable
from engine_svc.plan import PositionLogprobs
from engine_svc.requests.request import GenerationRequest
from engine_svc.runner import native_calls
from engine_svc.runner.native_calls import Arena, KernelsAlone, NotedSteps
from quire.prompt_embeds import PromptEmbeds
from tests.support.native import needs_native
from tests.support.run_engine import GREEDY, random_prompts, run, run_requests, running_engine
from tests.support.tiny_models import make_model

pytestmark = needs_native
SAMPLING = replace(GREEDY, logprobs=1)
# Requests come and go, so that the number of rows changes, and some prompts run beside decoding sequences.
LENGTHS = ((3, 4), (17, 9), (1, 11), (24, 6), (2, 13))

Answers = list[tuple[list[int], list[PositionLogprobs]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            # The kernels need head sizes that are multiples of 16.
            is_latent = family in ("deepseek-v3", "kimi-linear", "mistral4")
            changes = {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16} if is_latent else {}
            made[family] = make_model(tmp_path_factory.mktemp(family), family, **changes)
        return made[family]

    return get


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For each step that was to be replayed, whether it was."""
    found: list[bool] = []
    run_noted = NotedSteps.run

    def note(self: NotedSteps, *arguments: Any) -> torch.Tensor | None:
        hidden = run_noted(self, *arguments)
        found.append(hidden is not None)
        return hidden

    monkeypatch.setattr(NotedSteps, "run", note)
    return found


def requests(**changes: Any) -> list[GenerationRequest]:
    prompts = random_prompts(*(length for length, _ in LENGTHS))
    return [
        GenerationRequest("r", prompt, replace(SAMPLING, max_tokens=count, **changes))
        for prompt, (_, count) in zip(prompts, LENGTHS, strict=True)
    ]


def answers(engine: Engine, asked: list[GenerationRequest]) -> Answers:
    return [(choice.token_ids, choice.logprobs) for (choice,) in run_requests(engine, asked)]


def compare(folder: Path, **options: Any) -> None:
    """Compares eager and recorded steps; there are more requests than slots, so some have to wait."""
    found = []
    for enforce_eager in (True, False):
        with running_engine(folder, max_num_seqs=3, enforce_eager=enforce_eager, **options) as engine:
            found.append(answers(engine, requests()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "family",
    [
        "llama", "qwen3", "gemma2", "gemma3", "gemma4-moe", "gemma4-small", "mimo",
        "olmo2", "cohere2", "mixtral", "qwen2-moe", "deepseek-v3", "jamba",
        "granite-hybrid", "qwen3-next", "mamba", "lfm2-moe", "nemotron-h", "falcon-h1", "minimax", "kimi-linear",
        "opt-projected", "gpt2", "recurrent-gemma", "lfm3", "ministral3", "mistral4", "llama4",
        "apertus",
    ],
)  # fmt: skip
def test_families(folder: Callable[[str], Path], replays: list[bool], family: str) -> None:
    compare(folder(family), dtype="bfloat16")
    assert replays
    assert all(replays)


@pytest.mark.parametrize("options", [
    {"kv_cache_dtype": "fp8"}, {"quantization": "int8"}, {"quantization": "fp8"}, {"quantization": "int4"},
    {"dtype": "float16"}, {"cpu_kernels": "avx2"}, {"num_blocks": 3},
])  # fmt: skip
def test_forms(folder: Callable[[str], Path], replays: list[bool], options: dict[str, Any]) -> None:
    """The last option leaves room for only some of the sequences, which are preempted."""
    compare(folder("qwen3"), **options)
    assert replays
    assert all(replays)


def test_prompts_as_embeddings(folder: Callable[[str], Path], replays: list[bool]) -> None:
    """Torch inserts the rows of such prompts, and later tokens are like any others."""
    weights = load_file(folder("llama") / "model.safetensors")["model.embed_tokens.weight"].float()
    prompts = random_prompts(3, 20)
    asked = [
        GenerationRequest("r", [], replace(SAMPLING, max_tokens=5), prompt_embeds=PromptEmbeds("float32", 64, values))
        for values in (weights[prompt].numpy().tobytes() for prompt in prompts)
    ]
    plain = [GenerationRequest("r", prompt, replace(SAMPLING, max_tokens=5)) for prompt in prompts]
    with running_engine(folder("llama")) as engine:
        assert answers(engine, asked) == answers(engine, plain)
    assert sum(replays) >= 8


def test_one_recording_serves_all_steps(
    folder: Callable[[str], Path], replays: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, native_calls.__name__)
    with running_engine(folder("llama"), enable_prefix_caching=False) as engine:
        for lengths in ((3, 3), (1,), (16, 2), (2, 16), (30, 3)):
            run(engine, random_prompts(*lengths), replace(GREEDY, max_tokens=1))
    assert replays == [True] * 5
    assert sum("recorded" in record.message for record in caplog.records) == 1


def test_larger_steps_go_by_the_model(
    folder: Callable[[str], Path], replays: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_calls, "MOST_TOKENS", 20)
    with running_engine(folder("llama"), enable_prefix_caching=False) as engine:
        for length in (20, 21):
            run(engine, random_prompts(length), replace(GREEDY, max_tokens=1))
    assert replays == [True, False]


def test_a_model_that_needs_torch_is_not_recorded(
    folder: Callable[[str], Path], replays: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    """Dividing keys by their scales is torch's work. This is logged once, at debug level."""
    caplog.set_level(logging.DEBUG, native_calls.__name__)
    compare(folder("llama"), kv_cache_dtype="fp8", calculate_kv_scales=True)
    assert not any(replays)
    (record,) = [record for record in caplog.records if record.name == native_calls.__name__]
    assert record.levelno == logging.DEBUG
    assert record.message == "steps are not recorded: aten.div.Tensor cannot be"


def test_operators_that_compute_are_found() -> None:
    memory = torch.zeros(1 << 16, dtype=torch.uint8)
    given = torch.arange(12.0).view(3, 4)
    with torch.inference_mode(), KernelsAlone(Arena(memory, {7}, 7)):
        wide = given.new_empty((3, 8))
        wide.view(-1, 4)[:, 1:].split((1, 2), dim=1)[0].flatten().unsqueeze(0)
        torch.empty_like(wide).transpose(0, 1)
        assert given.float().data_ptr() == given.contiguous().reshape(4, 3).data_ptr()
        for compute in (
            lambda: given + 1,
            lambda: given.add_(1),
            lambda: given.t().contiguous(),
            lambda: given.to(torch.bfloat16),
            lambda: torch.zeros(3),
            lambda: torch.tensor([1.0]),
            lambda: torch.cat((given, given)),
            lambda: float(given[0, 0]),
            lambda: bool((given > 3).any()),
            lambda: given[torch.tensor([0])],
            lambda: given.clone(),
            lambda: wide.copy_(wide),
            lambda: wide.zero_(),
        ):
            with pytest.raises(NotRecordable):
                compute()


def test_torchs_compiler_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing it would take longer than anything else at an engine's startup."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # importing it fails

    class Fresh(KernelsAlone):  # torch caches what it makes of a method
        __torch_dispatch__ = inspect.unwrap(KernelsAlone.__torch_dispatch__)

    with Fresh(Arena(torch.zeros(1024, dtype=torch.uint8), {7}, 7)):
        torch.empty(3)


def test_memory_is_used_again_when_no_tensor_is_on_it() -> None:
    memory = torch.zeros(1024, dtype=torch.uint8)
    arena = Arena(memory, {7}, 7)
    first, second = arena.new(torch.empty(5, 20)), arena.new(torch.empty(3, dtype=torch.int64))
    assert first.data_ptr() == memory.data_ptr()
    assert second.data_ptr() == memory.data_ptr() + 448  # 400 bytes, rounded up to whole cache lines
    view = first[1:].t()
    del first
    assert arena.new(torch.empty(100)).data_ptr() == second.data_ptr() + 64
    del view
    third = arena.new(torch.empty(100))
    assert third.data_ptr() == memory.data_ptr()
    assert arena.most == 512 + 448
    with pytest.raises(NotRecordable, match="1024 bytes"):
        arena.new(torch.empty(200))
