"""Pipeline stages answer as one rank does, whatever runs beside; they share this process, except in the last test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from engine_svc.adapters.adapter import read_adapter
from engine_svc.executor.agreement import joint_spec
from engine_svc.layers.parameter import TensorSlice
from engine_svc.loader.model import build_model
from engine_svc.loader.save import save_sharded_state
from engine_svc.loader.source import TensorSource
from engine_svc.loader.weights import load_weights
from engine_svc.parallel.group import ParallelGroups
from engine_svc.parallel.layout import ParallelLayout
from engine_svc.plan import KvCacheSpec
from engine_svc.quantization.source import HeldTensor
from engine_svc.requests.outputs import FinishReason
from engine_svc.requests.request import GenerationRequest
from engine_svc.speculative.registry import make_speculation
from quire.errors import StartupError
from quire.sampling import SamplingParameters
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.models.test_prompt_embeds import looked_up
from tests.support.adapter_folders import low_rank, write_adapter
from tests.support.engine_options import engine_options
from tests.support.exact_answers import check_answers
from tests.support.grammars import EOS, PERSON, VOCABULARY_SIZE, following, is_person, make_grammars, spell, text_of
from tests.support.heads import make_eagle
from tests.support.multi_token import add_multi_token_layer
from tests.support.rank_drafter import NotedGuesses, RankDrafter
from tests.support.run_engine import GREEDY, Output, random_prompts, run, run_requests, running_engine, tokens
from tests.support.staged_executor import StagedExecutor
from tests.support.tiny_models import HYBRIDS, check_greedy, make_model

PROMPTS = random_prompts(1, 16, 17, 40, 90)
SHORT = replace(GREEDY, max_tokens=24)
# On some processors, Transformers' log-probabilities of the longest prompt differ by 1.2e-2 between its delta rule for
# chunks, which the reference runs, and its rule for single tokens. From the latter, Quire's differ by 6e-4.
WITHIN = {"qwen3-next": 1e-2}


def staged(stages: int, **options: Any) -> dict[str, Any]:
    return {"executor": StagedExecutor(), "pipeline_parallel_size": stages, "cpu_threads": 1} | options


@pytest.mark.parametrize(
    ("family", "stages", "options"),
    [
        ("llama", 2, {}), ("llama-untied", 3, {}), ("gemma3", 4, {"max_num_batched_tokens": 19}),
        ("gemma2", 2, {"pipeline_layer_partition": "1,2"}), ("cohere2", 3, {}), ("olmo2", 2, {}),
        ("granite", 2, {"enforce_eager": True}), ("deepseek-v3", 3, {}),
        ("gpt-oss", 2, {"attention_backend": "reference"}), ("gemma4-moe", 2, {}), ("mimo", 2, {}),
        ("jamba", 2, {}), ("nemotron-h", 5, {}), ("qwen3-next", 4, {}), ("gpt-neo", 2, {}), ("bloom-6-heads", 2, {}),
        ("longcat", 2, {}),
        ("opt-projected", 3, {}), ("qwen3", 2, {"cpu_kernels": "torch", "async_scheduling": False}),
    ],
)  # fmt: skip
def test_families(model_folder: ModelFolder, family: str, stages: int, options: dict[str, Any]) -> None:
    """Families that differ in what comes before and after their layers, in what these hand on, and in their caches."""
    folder, within = model_folder(family), WITHIN.get(family, 2e-3)
    with running_engine(folder, mamba_block_size=16, **staged(stages, **options)) as engine:
        found = run(engine, PROMPTS, replace(SHORT, logprobs=4))
        if family in HYBRIDS:  # some of whose stages have no states
            again = run(engine, PROMPTS, replace(SHORT, logprobs=4))
            assert engine.load().counters.prefix_cache_hits > 0
            check_answers(folder, PROMPTS, again, SHORT.max_tokens or 0, within)
    check_answers(folder, PROMPTS, found, SHORT.max_tokens or 0, within)


def test_steps_are_recorded_on_every_stage(model_folder: ModelFolder) -> None:
    given = staged(3)
    with running_engine(model_folder("llama"), **given) as engine:
        run(engine, PROMPTS[:2], SHORT)
        recorded = [runner._recorded for runner in given["executor"].runners]
    assert all(each is None or each._passes[False] for each in recorded)


def test_what_is_sent_on_rounds_like_what_is_not(model_folder: ModelFolder) -> None:
    folder = model_folder("llama")
    found = []
    for given in ({}, staged(3)):
        with running_engine(folder, dtype="bfloat16", **given) as engine:
            found.append(run(engine, PROMPTS, replace(SHORT, logprobs=0)))
    assert tokens(found[0]) == tokens(found[1])


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_prefix_hits_and_preemption(model_folder: ModelFolder, family: str) -> None:
    folder = model_folder(family)
    (shared,) = random_prompts(70)
    prompts = [shared + tail for tail in random_prompts(3, 20, 1, 9, seed=1)]
    with running_engine(folder, num_blocks=14 if family == "llama" else 60, **staged(2)) as engine:
        run(engine, [shared], SHORT)
        outputs = run(engine, prompts, replace(GREEDY, max_tokens=40))
        preempted, hits = engine.load().counters.preemptions, engine.load().counters.prefix_cache_hits
    check_greedy(folder, prompts, tokens(outputs), 40)
    assert preempted > 0 or family != "llama"
    assert hits > 0


def test_blocks_come_back_from_the_host(model_folder: ModelFolder) -> None:
    folder, prompts = model_folder("llama"), random_prompts(60, 60, 60)
    with running_engine(folder, num_blocks=6, num_host_blocks=20, **staged(2)) as engine:
        for _ in range(2):
            outputs = [run(engine, [prompt], replace(GREEDY, max_tokens=4))[0] for prompt in prompts]
            check_greedy(folder, prompts, tokens(outputs), 4)
    assert [output.usage.cached_prompt_tokens for (output,) in outputs if output.usage] == [48] * 3


def assert_same(one: list[list[Output]], other: list[list[Output]]) -> None:
    for ours, theirs in zip(itertools.chain(*one), itertools.chain(*other), strict=True):
        assert ours.token_ids == theirs.token_ids
        for kind in ("logprobs", "prompt_logprobs"):
            pairs = list(zip(getattr(ours, kind), getattr(theirs, kind), strict=True))
            assert all(mine.token_ids == yours.token_ids for mine, yours in pairs)
            assert all(mine.logprobs == pytest.approx(yours.logprobs, abs=1e-4) for mine, yours in pairs)


def same(folder: Path, requests: list[GenerationRequest], stages: int = 2, **options: Any) -> list[list[Output]]:
    """Checks that stages give the same outputs as one rank, and returns them."""
    found = []
    for given in ({}, staged(stages)):
        with running_engine(folder, **given, **options) as engine:
            found.append(run_requests(engine, requests))
    assert_same(*found)
    return found[1]


def test_all_that_sampling_keeps(model_folder: ModelFolder) -> None:
    """Covers choices, seeds, penalties, and log-probabilities of prompts and outputs."""
    sampling = SamplingParameters(
        n=2, seed=3, max_tokens=30, top_k=20, repetition_penalty=1.2, frequency_penalty=0.3, logprobs=2,
        prompt_logprobs=1, stop_token_ids=[3, 5, 8],
    )  # fmt: skip
    prompts = random_prompts(30, 31, 70)
    same(model_folder("llama-untied"), [GenerationRequest("r", prompt, sampling) for prompt in prompts], num_blocks=24)


def test_prompts_of_embeddings(model_folder: ModelFolder) -> None:
    folder = model_folder("llama")
    requests = [GenerationRequest("r", [], SHORT, prompt_embeds=each) for each in looked_up(folder, PROMPTS[3:])]
    same(folder, requests, max_num_batched_tokens=17)


def test_quantized_weights_and_a_cache_of_8_bits(model_folder: ModelFolder) -> None:
    requests = [GenerationRequest("r", prompt, SHORT) for prompt in PROMPTS[2:]]
    same(model_folder("qwen3"), requests, 3, quantization="int8", dtype="bfloat16")
    same(model_folder("qwen3"), requests, kv_cache_dtype="fp8")


def test_grammars_hold_up_no_other_step(tmp_path: Path) -> None:
    """A step's masks depend only on the tokens of its own sequences, so steps of other sequences run meanwhile."""
    folder, grammars, given = make_model(tmp_path, "llama", vocab_size=VOCABULARY_SIZE), make_grammars(), staged(2)
    sampling = SamplingParameters(seed=3, max_tokens=90)
    requests = [GenerationRequest("r", spell("Who?") * n, sampling, constraint=following(PERSON)) for n in (1, 2, 3, 4)]
    with running_engine(folder, grammars=grammars, eos_token_ids=(EOS,), **given) as engine:
        outputs = run_requests(engine, requests)
    grammars.close()
    ended = [output for (output,) in outputs if output.finish_reason is FinishReason.STOP]
    assert ended
    assert all(is_person(text_of(output.token_ids)) for output in ended)
    assert sum(len(plan.scheduled) == 2 for plan in given["executor"].plans) > 20


@pytest.mark.parametrize("family", ["llama", "jamba"])
def test_guessed_tokens(model_folder: ModelFolder, family: str) -> None:
    folder, options = model_folder(family), {"speculative_config": {"method": "suffix", "num_speculative_tokens": 3}}
    prompts = [prompt * 3 for prompt in random_prompts(6, 9, 14, 11)]
    config = engine_options(**options).speculative.chosen()
    assert config is not None
    drafter = make_speculation(config, iter(range(10**9)).__next__, overlaps=True)
    with running_engine(folder, drafter=drafter, **staged(3, **options)) as engine:
        found = tokens(run(engine, prompts, replace(GREEDY, max_tokens=40)))
    check_greedy(folder, prompts, found, 40)


def test_a_draft_model_runs_beside_the_last_stage(model_folder: ModelFolder) -> None:
    folder, drafter = model_folder("llama"), RankDrafter(3)
    given = staged(3, speculative_config={"method": "draft_model", "model": str(folder)})
    with running_engine(folder, drafter=drafter, **given) as engine:
        found = tokens(run(engine, PROMPTS[1:], SHORT))
    check_greedy(folder, PROMPTS[1:], found, 24)
    assert drafter.drafts["right"] == drafter.drafts["all"] > 40


@pytest.mark.parametrize("method", ["eagle", "mtp"])
def test_heads_share_an_embedding_that_the_last_stage_has_for_them(
    model_folder: ModelFolder, method: str, tmp_path: Path
) -> None:
    if method == "mtp":
        folder, head = make_model(tmp_path, "deepseek-v3"), {}
        add_multi_token_layer(folder)
    else:
        folder, head = model_folder("llama-untied"), {"model": str(tmp_path)}
        make_eagle(tmp_path, folder)
    config, found = {"method": method, "num_speculative_tokens": 3} | head, []
    for given in ({}, staged(3)):
        drafter = NotedGuesses()
        with running_engine(folder, drafter=drafter, speculative_config=config, **given) as engine:
            found.append((tokens(run(engine, PROMPTS[2:4], SHORT)), drafter.guesses))
    assert found[0] == found[1]
    assert len(found[0][1]) > 40


def test_heads_that_read_other_stages_are_refused(model_folder: ModelFolder) -> None:
    folder = model_folder("llama")
    given = staged(2, speculative_config={"method": "eagle3", "model": str(folder), "num_speculative_tokens": 2})
    with (
        pytest.raises(StartupError, match=r"eagle3 uses the inputs .* --pipeline-parallel-size"),
        running_engine(folder, **given),
    ):
        pass


def test_adapters_have_a_part_on_each_stage(model_folder: ModelFolder, tmp_path: Path) -> None:
    modules = {"model.layers.0.self_attn.q_proj": (64, 64), "model.layers.2.self_attn.o_proj": (64, 64)}
    adapters = []
    for index in range(2):
        path = write_adapter(tmp_path / str(index), low_rank(modules, seed=index))
        adapters.append(read_adapter(f"a{index}", str(path), "", index + 1, path, 16, modules))
    requests = [
        GenerationRequest("r", PROMPTS[3], SHORT, each.name if each else "", each) for each in (None, *adapters)
    ]
    outputs = same(model_folder("llama"), requests, 3, enable_lora=True, max_loras=2)
    assert len({tuple(output.token_ids) for (output,) in outputs}) == 3


def test_what_each_rank_holds_is_saved(model_folder: ModelFolder, tmp_path: Path) -> None:
    options = {"pipeline_parallel_size": 2, "cpu_kernels": "torch", "use_tqdm_on_load": False}
    save_sharded_state(model_folder("llama"), engine_options(**options), tmp_path / "saved", 2**30)
    with running_engine(tmp_path / "saved", **staged(2, load_format="sharded_state")) as engine:
        found = tokens(run(engine, PROMPTS, SHORT))
    check_greedy(model_folder("llama"), PROMPTS, found, 24)


def test_each_stage_has_its_layers_alone_and_reads_nothing_else(model_folder: ModelFolder) -> None:
    """A tied embedding is the exception: the first and the last stage both have it."""
    for family, tied in (("llama", True), ("llama-untied", False)):
        folder, layout = model_folder(family), ParallelLayout(pipeline=3)
        options = engine_options(dtype="float32", pipeline_parallel_size=3, use_tqdm_on_load=False)
        for rank in range(3):
            model = build_model(folder, options, ParallelGroups(layout, rank), torch.device("cpu")).model
            read = Watched(folder)
            load_weights(model, read, False)
            assert {name for name in read.read if ".layers." in name} == {
                name for name in read.names() if f".layers.{rank}." in name
            }
            others = {name.removeprefix("model.").split(".")[0] for name in read.read if ".layers." not in name}
            embedding = {"embed_tokens"} if rank == 0 or (tied and rank == 2) else set()
            assert others == embedding | ({"norm"} | (set() if tied else {"lm_head"}) if rank == 2 else set())


class Watched(TensorSource):
    """A checkpoint that records which of its tensors are read."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.read = folder, set[str]()
        self._held = load_file(folder / "model.safetensors")

    def names(self) -> dict[str, Path]:
        return dict.fromkeys(self._held, self.folder)

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        for name, tensor in self._held.items():
            yield name, WatchedTensor(tensor, name, self.read)


class WatchedTensor(HeldTensor):
    def __init__(self, tensor: torch.Tensor, name: str, read: set[str]) -> None:
        super().__init__(tensor)
        self._name, self._read = name, read

    def __getitem__(self, index: Any) -> torch.Tensor:
        self._read.add(self._name)
        return super().__getitem__(index)


def spec(**changes: Any) -> KvCacheSpec:
    given = {"bytes_per_block": 100, "available_bytes": 1000, "state_bytes": 0} | changes
    return KvCacheSpec("a", "float32", "cpu", 10, 10, attention_backend="cpu", block_size=1,
                       max_num_batched_tokens=1, **given)  # fmt: skip


def test_the_rank_with_the_least_room_decides_for_all() -> None:
    found = joint_spec([spec(), spec(bytes_per_block=300, available_bytes=2000, adapter_modules={"q": (1, 2)}),
                        spec(bytes_per_block=0, state_bytes=50, adapter_modules={"k": (3, 4)})])  # fmt: skip
    assert (found.available_bytes - found.state_bytes) // found.bytes_per_block == 6
    assert found.state_bytes == 50
    assert found.adapter_modules == {"q": (1, 2), "k": (3, 4)}
    assert joint_spec([spec(), spec(bytes_per_block=0, available_bytes=10, state_bytes=50)]).available_bytes == 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pipeline_parallel_size": 4}, "--pipeline-parallel-size 4: the model has 3 layers"),
        ({"pipeline_parallel_size": 2, "pipeline_layer_partition": "1,1"}, "these are 2 layers"),
    ],
)
def test_what_cannot_be_cut_is_refused(model_folder: ModelFolder, options: dict[str, Any], words: str) -> None:
    with (
        pytest.raises(StartupError, match=words),
        running_engine(model_folder("llama"), executor=StagedExecutor(), **options),
    ):
        pass


def test_pairs_of_layers_are_not_cut(model_folder: ModelFolder) -> None:
    with (
        pytest.raises(StartupError, match="layer 1 of LongcatFlashForCausalLM, the first of a stage, is the second"),
        running_engine(model_folder("longcat"), **staged(2, pipeline_layer_partition="1,3")),
    ):
        pass


def test_one_process_runs_no_stages(model_folder: ModelFolder) -> None:
    with (
        pytest.raises(StartupError, match="use mp for"),
        running_engine(model_folder("llama"), pipeline_parallel_size=2, distributed_executor_backend="uni"),
    ):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "ranks"),
    [("qwen3-moe", (2, 2)), ("qwen3-next", (1, 4))],
)
def test_over_processes(model_folder: ModelFolder, family: str, ranks: tuple[int, int]) -> None:
    """Covers chunks, cache hits, preemption and log-probabilities; each expert is whole on one of a stage's ranks."""
    folder, options = model_folder(family), {"tensor_parallel_size": ranks[0], "pipeline_parallel_size": ranks[1]}
    options["enable_expert_parallel"] = ranks[0] > 1
    (shared,) = random_prompts(70)
    prompts = [shared + tail for tail in random_prompts(3, 20, 1, 9, 2, 4, seed=1)]
    with running_engine(folder, num_blocks=36, cpu_threads=1, max_num_batched_tokens=33, **options) as engine:
        run(engine, [shared], SHORT)
        outputs = run(engine, prompts)
        short = run(engine, prompts, replace(SHORT, logprobs=2, prompt_logprobs=1))
        preempted = engine.load().counters.preemptions
    check_greedy(folder, prompts, tokens(outputs), 64)
    assert preempted > 0
    with running_engine(folder, num_blocks=256) as engine:
        expected = run(engine, prompts, replace(SHORT, logprobs=2, prompt_logprobs=1))
    assert_same(expected, short)
