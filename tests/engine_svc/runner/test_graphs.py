"""Decoding with recorded forward passes: padded batches in persistent buffers. Real recording needs a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from triton.runtime.interpreter import InterpretedFunction

from engine_svc.adapters.adapter import read_adapter
from engine_svc.attention.triton import TritonBackend
from engine_svc.kernels.experts import SortedRows, sort_by_expert
from engine_svc.kernels.sampling import draw
from engine_svc.ops.triton import InvariantTritonOps, TritonOps
from engine_svc.plan import CacheSize, NewSequence, PositionLogprobs, SamplingPlan, ScheduledSequence, StepPlan
from engine_svc.requests.request import GenerationRequest
from engine_svc.runner import warm_up
from engine_svc.runner.batch import SlotBuffers
from engine_svc.runner.graphs import Held, MeasuredCapture, PaddedShapes, graph_sizes, prompt_sizes
from engine_svc.runner.inputs import Shape
from engine_svc.runner.recorded import CannotRecord, Capture, Forward, Replay
from engine_svc.runner.runner import Runner
from engine_svc.sampling.choosers import TorchChooser
from engine_svc.sampling.truncation import packed_columns
from quire.prompt_embeds import PromptEmbeds
from tests.support.adapter_folders import low_rank, write_adapter
from tests.support.compiled_kernels import CompiledKernels
from tests.support.exact_answers import check_answers
from tests.support.recorder import Recorder, record_prompts
from tests.support.replaying_drafter import ReplayingDrafter
from tests.support.run_engine import GREEDY, random_prompts, run, run_requests, running_engine, tokens
from tests.support.tiny_models import VOCAB_SIZE, check_greedy, make_model, reference_tokens

CPU = torch.device("cpu")


class Failing(Capture):
    def __call__(self, forward: Forward) -> tuple[Replay, torch.Tensor]:
        raise CannotRecord("CUDA error: operation not permitted when stream is capturing")


@pytest.fixture(autouse=True)
def no_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    record_prompts(monkeypatch)


def test_sizes() -> None:
    assert graph_sizes((), 256) == [1, 2, 4, *range(8, 257, 8)]
    assert graph_sizes((), 20) == [1, 2, 4, 8, 16, 20]
    assert graph_sizes((32,), 256) == [1, 2, 4, 8, 16, 24, 32]
    assert graph_sizes((7, 3, 100), 50) == [3, 7, 50]
    assert graph_sizes((64, 128), 2) == [2]


def test_sizes_of_prompts() -> None:
    sizes = prompt_sizes((), 8192, 2048)
    assert sizes[:4] == [16, 32, 48, 64] and sizes[-3:] == [1536, 1792, 2048]
    assert [prompt_sizes((), 8192, size)[-1] for size in (1024, 2880, 4096, 16384)] == [4096, 1280, 1024, 512]
    assert all(size <= max(16, before * 5 / 4 + 1) or size - before == 16 for before, size in pairwise(sizes))
    assert prompt_sizes((), 100, 64) == [16, 32, 48, 64, 80, 96, 100]
    assert prompt_sizes((32,), 256, 64) == [16, 32]
    assert prompt_sizes((300, 1, 4), 256, 64) == [4]
    assert prompt_sizes((1,), 256, 64) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma2", "qwen3-moe"])
def test_steps_with_prompts_are_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """Covers prompts alone, several at once, in chunks, and beside decoding sequences."""
    folder = make_model(tmp_path / family, family, num_hidden_layers=2)
    prompts = random_prompts(3, 28, 12, 45)
    recorder = Recorder()
    record_prompts(monkeypatch, 8, 30)
    monkeypatch.setattr("engine_svc.loader.model.create_ops", lambda *_: TritonOps())
    monkeypatch.setattr(Runner, "allocate", allocate_with(recorder))
    sampling = replace(GREEDY, max_tokens=2)
    routed = family == "qwen3-moe"
    with running_engine(
        folder, attention_backend="triton", max_num_seqs=2, max_num_batched_tokens=30, long_prefill_token_threshold=25,
        enable_return_routed_experts=routed,
    ) as engine:  # fmt: skip
        found = run(engine, prompts, replace(sampling, logprobs=4))
        assert recorder.replays == engine.load().step  # every step
    check_answers(folder, prompts, found, 2)
    if routed:
        monkeypatch.undo()
        with running_engine(folder, enable_return_routed_experts=True) as engine:
            plain = run(engine, prompts, sampling)
        assert [each.routed_experts for (each,) in found] == [each.routed_experts for (each,) in plain]
    assert recorder.recorded == 2 + 2  # for 1 and 2 decoding sequences, and for 8 and 30 tokens


def test_which_graph_a_step_with_prompts_goes_by() -> None:
    """Picks the smallest with room for tokens and sequences; none if tokens, sequences or contexts do not fit."""
    shapes = PaddedShapes([4, 12], 900, most_positions=lambda sequences, _: 50 * sequences, prompt_sizes=[8, 30, 300])
    recorded = [shape for shape in shapes.all() if not shape.query_len]
    expected = [(300, 12), (30, 12), (30, 8), (8, 12), (8, 8)]
    assert recorded == [Shape(sequences, tokens, 0, 50) for tokens, sequences in expected]
    buffers = SlotBuffers(13, 700, 4, 1, CPU, torch.float32)

    def found(*sequences: tuple[int, int]) -> tuple[int, int] | None:
        computed, new = np.array(sequences).T
        shape = shapes.of(buffers.rows(np.arange(len(sequences)), computed, new))
        return None if shape is None else (shape.tokens, shape.sequences)

    assert found((0, 8)) == (8, 8)
    assert found((5, 7), (9, 2)) == (30, 8)
    assert found((0, 2), *[(3, 1)] * 8) == (30, 12)
    assert found((0, 31), (3, 1)) == (300, 12)
    assert found((0, 300), (3, 1)) is None
    assert found((0, 2), (399, 1)) == (8, 8)
    assert found((0, 2), (400, 1)) is None
    assert found((0, 2), *[(3, 1)] * 12) is None


@pytest.mark.slow
def test_prompts_behind_long_contexts_are_computed_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are not used, because the keys of such prompts are better split among programs."""
    monkeypatch.setattr("engine_svc.attention.triton._LONG_CONTEXT", 16)
    monkeypatch.setattr("engine_svc.attention.triton.multiprocessors", lambda _: 100)
    folder = make_model(tmp_path / "llama", "llama", num_hidden_layers=1)
    prompts, recorder = random_prompts(40), Recorder()
    record_prompts(monkeypatch, 30)
    monkeypatch.setattr(Runner, "allocate", allocate_with(recorder))
    with running_engine(folder, attention_backend="triton", max_num_seqs=1, max_num_batched_tokens=12) as engine:
        found = tokens(run(engine, prompts, replace(GREEDY, max_tokens=3)))
        assert engine.load().step == 4 + 2
    check_greedy(folder, prompts, found, 3)
    assert recorder.replays == 1 + 2  # the prompt's first tokens, and decoding


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "shape"),
    # Each kind of layer: with a window and without, dense and with experts.
    [("gemma2", {"num_hidden_layers": 2}), ("deepseek-v3", {"num_hidden_layers": 2}), ("bamba", {})],
)
def test_tokens_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, shape: dict[str, Any]
) -> None:
    folder = make_model(tmp_path / family, family, **shape)
    prompts = random_prompts(3, 17, 28)
    sampling = replace(GREEDY, max_tokens=6)
    recorder = Recorder()
    monkeypatch.setattr(Runner, "allocate", allocate_with(recorder))
    with running_engine(folder, attention_backend="triton", max_num_seqs=4) as engine:
        found = run(engine, prompts, replace(sampling, logprobs=4))
    check_answers(folder, prompts, found, 6)
    assert recorder.replays == 5
    assert recorder.recorded == 3  # for 1, 2 and 4 sequences, at startup


@pytest.mark.slow
def test_batch_invariance_by_a_gpus_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a whole model in the interpreter: alone and beside others, with graphs filled up by other sequences and
    padding rows, and in chunks without graphs.
    """
    folder = make_model(tmp_path / "llama", "llama", initializer_range=0.02, num_hidden_layers=2)
    sampling = replace(GREEDY, max_tokens=3, logprobs=1, temperature=0.7, seed=1)
    asked = [GenerationRequest("r", prompt, sampling) for prompt in random_prompts(3, 11, 2)]
    monkeypatch.setattr("engine_svc.loader.model.create_ops", lambda *_: InvariantTritonOps())

    def found(*batches: list[GenerationRequest], **options: int) -> list[tuple[list[int], list[PositionLogprobs]]]:
        with running_engine(
            folder, attention_backend="triton", batch_invariant=True, max_num_seqs=4, enable_prefix_caching=False,
            **options,
        ) as engine:  # fmt: skip
            answers = [choice for batch in batches for (choice,) in run_requests(engine, batch)]
        return [(choice.token_ids, choice.logprobs) for choice in answers]

    in_chunks = found(asked, max_num_batched_tokens=8)
    monkeypatch.setattr(Runner, "allocate", allocate_with(Recorder()))
    assert found(asked, asked[1:2]) == [*in_chunks, in_chunks[1]]


@pytest.mark.slow
def test_batches_of_several_tokens_a_sequence_are_replayed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model(tmp_path / "llama", "llama", num_hidden_layers=1)
    prompts = random_prompts(3, 3, 3)
    recorder = Recorder()
    monkeypatch.setattr(Runner, "allocate", allocate_with(recorder, query_len=3))
    with running_engine(folder, attention_backend="triton", max_num_seqs=4) as engine:
        found = tokens(run(engine, prompts, replace(GREEDY, max_tokens=4)))
    check_greedy(folder, prompts, found, 4)
    assert recorder.replays == 4
    assert recorder.recorded == 2 * 3  # for 1, 2 and 4 sequences


@pytest.mark.slow
def test_contexts_that_graphs_have_no_room_for_are_computed_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_model(tmp_path / "llama", "llama", num_hidden_layers=1)
    prompts = random_prompts(3, 17, 28)
    recorder = Recorder()
    monkeypatch.setattr(TritonBackend, "most_positions", lambda backend, sequences, query_len: 59)
    monkeypatch.setattr(Runner, "allocate", allocate_with(recorder))
    with running_engine(folder, attention_backend="triton", max_num_seqs=6) as engine:
        found = tokens(run(engine, prompts, replace(GREEDY, max_tokens=8)))
    check_greedy(folder, prompts, found, 8)
    # Three sequences and padding for a fourth, with 52 positions in the first step and 3 more in each later one.
    assert recorder.replays == 2


def test_how_much_memory_graphs_take_is_told_by_the_first_two() -> None:
    """The second graph reuses memory reserved for the first, except for what stays in use."""
    held = iter([Held(100, 90), Held(160, 97), Held(162, 101)])
    capture = MeasuredCapture(Recorder(), lambda: next(held))
    assert capture.total(3) == 0
    for _ in range(2):
        capture(lambda: torch.zeros(1))
    assert capture.total(1) == 60
    assert capture.total(5) == 60 + 4 * 4


def test_the_largest_graphs_come_first_and_again_with_adapters() -> None:
    shapes = PaddedShapes([1, 2, 4], 90, [1, 3], lambda sequences, _: 240 if sequences < 4 else 0, have_adapters=True)
    assert shapes.all() == [
        Shape(size, size * query_len, query_len, context, has_adapters)
        for has_adapters in (True, False)
        for size, query_len, context in [(2, 3, 90), (1, 3, 90), (2, 1, 90), (1, 1, 90)]
    ]
    assert dataclasses.replace(shapes, most=2).all() == shapes.all()[:2]


@pytest.fixture
def not_a_number_in_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fills new tensors with NaN, so that reading unwritten values is noticed."""
    new = torch.Tensor.new_empty

    def filled(like: torch.Tensor, *size: Any, **options: Any) -> torch.Tensor:
        found = new(like, *size, **options)
        return found.fill_(torch.nan) if found.is_floating_point() else found

    monkeypatch.setattr(torch.Tensor, "new_empty", filled)


@pytest.mark.slow
@pytest.mark.usefixtures("not_a_number_in_new_memory")
@pytest.mark.parametrize(("family", "most"), [("qwen3-moe", 2), ("llama", 9)])
def test_drafts_are_verified_by_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, most: int) -> None:
    """Covers up to `most` drafts, more in some sequences than in others, and graphs with and without padding rows.

    Padding rows, for which attention is not computed, may hold anything. Keys are split among programs, whether drafts
    are few or many.
    """
    for name, value in (("_LONG_PART", 32), ("_LONG_CONTEXT", 16), ("multiprocessors", lambda _: 20)):
        monkeypatch.setattr(f"engine_svc.attention.triton.{name}", value)
    folder = make_model(tmp_path / family, family, num_hidden_layers=2)
    monkeypatch.setattr("engine_svc.loader.model.create_ops", lambda *_: TritonOps())
    prompts = random_prompts(3, 5, 33)
    asked = [
        GenerationRequest(str(key), prompt, replace(GREEDY, max_tokens=6 + 3 * key))
        for key, prompt in enumerate(prompts)
    ]
    known = [answer[: 6 + 3 * key] for key, answer in enumerate(reference_tokens(folder, prompts, 12))]
    recorder, drafter = Recorder(), ReplayingDrafter(VOCAB_SIZE, most=most)
    monkeypatch.setattr(Runner, "allocate", allocate_with(recorder, query_len=most + 1))
    with running_engine(
        folder, attention_backend="triton", max_num_seqs=4, drafter=drafter, enable_prefix_caching=False
    ) as engine:
        drafter.know(asked, [[answer] for answer in known])
        assert tokens(run_requests(engine, asked)) == known
        assert recorder.replays == engine.load().step - 1  # every step except that of the prompts
    assert drafter.num_drafts > drafter.num_right > 5


@pytest.mark.slow
def test_rows_of_nobody_are_computed_by_no_expert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding rows choose no experts, whose weights would be read for nothing."""
    folder = make_model(tmp_path / "qwen3-moe", "qwen3-moe", num_hidden_layers=2)
    recorder, computed = Recorder(), list[list[bool]]()

    def sort(expert_ids: torch.Tensor, *sizes: int) -> SortedRows:
        computed.append((expert_ids >= 0).all(1).tolist())
        assert computed[-1] == (expert_ids >= 0).any(1).tolist()
        return sort_by_expert(expert_ids, *sizes)

    monkeypatch.setattr("engine_svc.ops.triton.sort_by_expert", sort)
    monkeypatch.setattr("engine_svc.loader.model.create_ops", lambda *_: TritonOps())
    monkeypatch.setattr(Runner, "allocate", allocate_with(recorder))
    prompts = random_prompts(3, 5, 4)
    with running_engine(folder, attention_backend="triton", max_num_seqs=4) as engine:
        computed.clear()
        found = tokens(run(engine, prompts, replace(GREEDY, max_tokens=3)))
    check_greedy(folder, prompts, found, 3)
    assert recorder.replays == 2
    # For each step, the rows of the only layer with experts: the last one, which computes one row per prompt.
    assert computed == [[True] * 3, *[[True] * 3 + [False]] * 2]


def test_prompts_of_one_embedding_are_not_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs read token ids, which mean nothing for prompts of embeddings."""
    folder = make_model(tmp_path / "llama", "llama", num_hidden_layers=1)
    weights = load_file(folder / "model.safetensors")["model.embed_tokens.weight"].float()
    rows = PromptEmbeds("float32", weights.shape[1], weights[7].numpy().tobytes())
    sampling = replace(GREEDY, max_tokens=4)
    recorder = Recorder()
    monkeypatch.setattr(Runner, "allocate", allocate_with(recorder))
    with running_engine(folder, attention_backend="triton", max_num_seqs=2) as engine:
        found = tokens(run_requests(engine, [GenerationRequest("r", [], sampling, prompt_embeds=rows)]))
    check_greedy(folder, [[7]], found, 4)
    assert recorder.replays == 3


def test_without_graphs_decoding_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_model(tmp_path / "llama", "llama", num_hidden_layers=1)
    prompts = random_prompts(5)
    sampling = replace(GREEDY, max_tokens=4)
    monkeypatch.setattr(Runner, "allocate", allocate_with(Failing()))
    with running_engine(folder, attention_backend="triton") as engine:
        found = tokens(run(engine, prompts, sampling))
    check_greedy(folder, prompts, found, 4)


def allocate_with(capture: Capture, query_len: int = 1, *, warms_up: bool = False) -> Callable[..., None]:
    allocate = Runner.allocate

    def both(runner: Runner, size: CacheSize) -> None:
        with pytest.MonkeyPatch.context() as patch:
            # Without graphs, and the interpreter compiles nothing.
            patch.setattr(Runner, "_run_prompt", lambda *_: None)
            allocate(runner, size)
        if warms_up:
            runner.warm_up(size.num_blocks, 6)
        runner.make_graphs(capture, query_len)

    return both


def zeroed(new: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *given, **options: new(*given, **options).zero_()


def compiled_once(monkeypatch: pytest.MonkeyPatch) -> CompiledKernels:
    """Notes what is compiled, and runs kernels only when it is something new: what they compute decides no compilation.

    Otherwise results are zeros, which are also valid tokens, experts and rows.
    """
    run, known = InterpretedFunction.run, 0

    def run_new(kernel: InterpretedFunction, *arguments: Any, **named: Any) -> None:
        nonlocal known
        if len(compiled.kernels) > known:
            known = len(compiled.kernels)
            run(kernel, *arguments, **named)

    monkeypatch.setattr(InterpretedFunction, "run", run_new)
    for place, name in [(torch.Tensor, "new_empty"), (torch, "empty"), (torch, "empty_like")]:
        monkeypatch.setattr(place, name, zeroed(getattr(place, name)))
    compiled = CompiledKernels(monkeypatch)
    return compiled


@pytest.mark.slow
@pytest.mark.parametrize(("family", "quantization"), [("qwen3-moe", None), ("llama", None), ("llama", "int4")])
def test_serving_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, quantization: str | None
) -> None:
    """The startup runs cover steps of any size, with graphs and without, with adapters, however tokens are sampled."""
    folder = make_model(tmp_path / family, family, num_hidden_layers=2)
    modules = {f"model.layers.0.self_attn.{name}": (64, 64) for name in ("q_proj", "o_proj")}
    path = write_adapter(tmp_path / "adapter", low_rank(modules))
    adapter = read_adapter("a", str(path), "", 1, path, 16, modules) if family == "llama" else None
    compiled, recorder = compiled_once(monkeypatch), Recorder()
    monkeypatch.setattr("engine_svc.loader.model.create_ops", lambda *_: TritonOps())
    monkeypatch.setattr("engine_svc.sampling.sampler.NativeChooser", lambda most, _: TorchChooser(most, CPU))
    monkeypatch.setattr("engine_svc.sampling.choosers.draw_rows", draw_as_a_gpu_does)
    sampled = [
        {}, {"temperature": 0.7}, {"temperature": 1.0, "top_k": 3}, {"temperature": 1.0, "top_p": 0.5},
        {"temperature": 1.0, "min_p": 0.2, "top_k": 900}, {"temperature": 1.0, "presence_penalty": 1.0},
    ]  # fmt: skip
    asked = [
        GenerationRequest("r", prompt, replace(GREEDY, max_tokens=3 + index, logit_bias=((5, 1.0),), **sampling))
        for index, (prompt, sampling) in enumerate(zip(random_prompts(3, 1, 16, 17, 5, 45), sampled, strict=True))
    ]
    monkeypatch.setattr(Runner, "allocate", allocate_with(recorder, warms_up=True))
    monkeypatch.setattr(warm_up, "MOST_CPU_TOKENS", 40)  # as on a GPU, where the number is not bounded
    with running_engine(
        folder, attention_backend="triton", max_num_seqs=6, max_num_batched_tokens=40, enable_lora=adapter is not None,
        quantization=quantization,
    ) as engine:  # fmt: skip
        started, recorded = set(compiled.kernels), recorder.recorded
        run_requests(engine, asked)
        run_requests(engine, asked[3:4])
        if adapter:
            given = [dataclasses.replace(each, model="a", adapter=adapter) for each in asked[1:4]]
            run_requests(engine, [*given, asked[4]])
    assert {kernel[0] for kernel in started} >= {"_decode_kernel", "_prefill_kernel", "_draw_kernel"}
    assert not compiled.kernels - started
    assert recorder.recorded == recorded == (8 if adapter else 4)
    assert recorder.replays > 5


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "deepseek-v2"])
def test_long_contexts_compile_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """Covers contexts of 4,201 tokens, started with prompts of 40: in a graph, beside a prompt, at a prompt's end.

    In DeepSeek's model, that end attends with plain keys and values, which no recorded step does.
    """
    folder = make_model(tmp_path / family, family, num_hidden_layers=2, max_position_embeddings=8192)
    monkeypatch.setattr("engine_svc.attention.triton.MIN_QUERIES", 20)
    monkeypatch.setattr("engine_svc.attention.triton._MANY_SCORES", 1)
    compiled, recorder, runners = compiled_once(monkeypatch), Recorder(), list[Runner]()
    monkeypatch.setattr("engine_svc.loader.model.create_ops", lambda *_: TritonOps())
    monkeypatch.setattr("engine_svc.attention.triton.multiprocessors", lambda _: 100)
    allocate = allocate_with(recorder, warms_up=True)

    def noted(runner: Runner, *arguments: int) -> None:
        allocate(runner, *arguments)
        runners.append(runner)

    monkeypatch.setattr(Runner, "allocate", noted)
    with running_engine(folder, 300, attention_backend="triton", max_num_seqs=6, max_num_batched_tokens=40):
        (runner,), started = runners, set(compiled.kernels)
        greedy = SamplingPlan(replace(GREEDY, max_tokens=9))
        long = NewSequence(0, [5] * 4201, 4201, 4200, [list(range(270))], greedy)
        prompt = NewSequence(1, [7] * 20, 20, 0, [[280, 281]], greedy)
        runner.step(StepPlan(1, [long], [ScheduledSequence(0, 4200, 1, 1, [])]))
        assert recorder.replays == 1
        mixed = [ScheduledSequence(0, 4201, 1, 1, []), ScheduledSequence(1, 0, 20, 1, [])]
        runner.step(StepPlan(2, [prompt], mixed))
        end = replace(long, slot=2, num_computed_tokens=4181)
        runner.step(StepPlan(3, [end], [ScheduledSequence(2, 4181, 20, 1, [])]))
    assert not compiled.kernels - started
    assert any(kernel[0] == "_decode_kernel" and ("PART_KEYS", 1024) in kernel for kernel in started)
    assert (family == "llama") == all(kernel[0] != "_expanded_kernel" for kernel in started)


def draw_as_a_gpu_does(logits: torch.Tensor, parameters: Any, keys: torch.Tensor, _: object) -> torch.Tensor:
    return draw(logits, *packed_columns(parameters, logits), keys)
