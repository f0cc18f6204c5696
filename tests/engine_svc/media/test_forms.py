"""Models with images in every form: several ranks and stages, drafts, adapters, quantized, in 16 bits, asleep.

Where weights are those of the checkpoint in float32, answers equal Transformers'.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine_svc.adapters.adapter import read_adapter
from engine_svc.requests.request import GenerationRequest
from engine_svc.speculative.controller import Controller
from engine_svc.speculative.registry import make_speculation
from quire.sleep import PARTS, SleepLevel
from tests.engine_svc.media.conftest import VisionFolder
from tests.support.engine_options import engine_options
from tests.support.heads import add_copied_multi_token_layer
from tests.support.lora import adapter_executor, merge, modules_of, write_adapter
from tests.support.native import needs_native
from tests.support.rank_drafter import RankDrafter
from tests.support.replaying_drafter import ReplayingDrafter
from tests.support.run_engine import Output, advance, run_requests, running_engine, tokens
from tests.support.staged_executor import StagedExecutor
from tests.support.tensor_executor import TensorExecutor
from tests.support.vision_models import random_image
from tests.support.vision_models.conversations import GREEDY_DOZEN, Part, answer, ask, prompt_logprobs

# Images that are computed whole; three positions, and embeddings added after several layers. Gemma 4 has inputs for
# each layer, which are not those of images, and buffers in its encoder; LLaVA has none of all this.
FAMILIES = ("gemma3", "gemma4", "llava", "qwen3_vl")
families = pytest.mark.parametrize("family", ["gemma3", "qwen3_vl"])
ONE, OTHER, THIRD = random_image(60, 40, 1), random_image(60, 40, 2), random_image(30, 70, 3)
CONVERSATIONS: list[tuple[Part, ...]] = [
    ("Look: ", ONE, "What is it?"), (OTHER, THIRD, ONE), ("Only text, and more of it than fits into a block.",),
    ("Look: ", OTHER, "What is it?"),
]  # fmt: skip
CHUNKS = {"max_num_batched_tokens": 19, "cpu_threads": 1}


def small_chunk(family: str) -> int:
    """Tokens of a step that split most images; those of Gemma 3 have 16 tokens and are never split."""
    return 17 if family == "gemma3" else 7


def check(folder: Path, asked: list[GenerationRequest] | None = None, **options: Any) -> None:
    """Checks answers to all conversations together, then again with what the caches have of them."""
    asked = asked or [ask(folder, *parts) for parts in CONVERSATIONS]
    expected = [answer(folder, *parts) for parts in CONVERSATIONS]
    with running_engine(folder, **CHUNKS | options) as engine:
        assert tokens(run_requests(engine, asked)) == expected
        assert tokens(run_requests(engine, asked)) == expected


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "qwen3_vl"])
def test_tensor_ranks(vision_folder: VisionFolder, family: str) -> None:
    check(vision_folder(family), executor=TensorExecutor(), tensor_parallel_size=2)


@families
def test_steps_cut_in_half(vision_folder: VisionFolder, family: str) -> None:
    """Some are cut within an image."""
    folder = vision_folder(family)
    cut = {"enable_dbo": True, "dbo_decode_token_threshold": 2, "dbo_prefill_token_threshold": 8, "cpu_threads": 1}
    expected = [answer(folder, *parts) for parts in CONVERSATIONS]
    with running_engine(folder, executor=TensorExecutor(), tensor_parallel_size=2, **cut) as engine:
        for parts, wanted in zip(CONVERSATIONS, expected, strict=True):
            assert tokens(run_requests(engine, [ask(folder, *parts)])) == [wanted]
        assert tokens(run_requests(engine, [ask(folder, *parts) for parts in CONVERSATIONS])) == expected
        assert engine.load().counters.dual_batch_steps > len(CONVERSATIONS)


@pytest.mark.parametrize(
    ("family", "partition"),
    # What is added between Qwen3-VL's layers, or Granite's, belongs to one stage, or each stage adds some of it.
    [
        ("gemma3", "1,2"),
        ("granite4_vision", "2,4"),
        ("granite_docling", "1,2"),
        ("qwen3_vl", "2,1"),
        ("qwen3_vl", "1,1,1"),
    ],
)
def test_stages(vision_folder: VisionFolder, family: str, partition: str) -> None:
    stages = partition.count(",") + 1
    check(
        vision_folder(family), executor=StagedExecutor(), pipeline_parallel_size=stages,
        pipeline_layer_partition=partition,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen3_vl", {"tensor_parallel_size": 2}), ("qwen3_vl", {"pipeline_parallel_size": 2}),
        ("llava", {"distributed_executor_backend": "mp"}),
    ],
)  # fmt: skip
def test_rank_processes(vision_folder: VisionFolder, family: str, options: dict[str, Any]) -> None:
    """How ranks compute each family is tested above; Qwen3-VL's images have all that is sent to them."""
    check(vision_folder(family), **options)


@families
def test_guessed_tokens(vision_folder: VisionFolder, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All guesses are tried; which are worth it depends on which sequences happen to run together."""
    folder = vision_folder(family)
    options = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}}
    config = engine_options(**options).speculative.chosen()
    assert config is not None
    asked = [ask(folder, *parts) for parts in CONVERSATIONS]
    drafter = make_speculation(config, iter(range(10**9)).__next__, overlaps=False)
    monkeypatch.setattr(Controller, "is_asleep", lambda *_: False)
    monkeypatch.setattr(Controller, "lengths", lambda _, count, offers: [offer.most for offer in offers])
    check(folder, asked, drafter=drafter, **options)
    assert drafter.statistics.draft_tokens > 0


@pytest.mark.parametrize(("family", "right"), [("gemma3", 0.6), ("qwen3_vl", 1.0), ("qwen3_vl", 0.6), ("qwen3_5", 0.6)])
def test_right_and_wrong_drafts(vision_folder: VisionFolder, family: str, right: float) -> None:
    folder = vision_folder(family)
    asked = [ask(folder, *parts, request_id=f"r{index}") for index, parts in enumerate(CONVERSATIONS)]
    drafter = ReplayingDrafter(256, right=right)
    drafter.know(asked, [[answer(folder, *parts)] for parts in CONVERSATIONS])
    config = {"method": "ngram", "num_speculative_tokens": 5}  # as many as it proposes, for which states need room
    check(folder, asked, drafter=drafter, speculative_config=config)
    assert drafter.num_right > 10  # how often it drafts depends on when images are encoded
    assert (drafter.num_drafts > drafter.num_right) == (right < 1.0)


@families
def test_a_draft_model_drafts_for_texts_alone(vision_folder: VisionFolder, family: str) -> None:
    """It reads no images. Here it is the text model itself, which is right about texts each time."""
    folder, drafter = vision_folder(family), RankDrafter(3)
    check(folder, drafter=drafter, speculative_config={"method": "draft_model", "model": str(folder)})
    assert drafter.drafts["right"] == drafter.drafts["all"] > 10


def test_a_layer_for_multi_token_prediction_drafts_for_texts_alone(vision_folder: VisionFolder, tmp_path: Path) -> None:
    """It is beside the parts that read text and images. Here, it is a copy of the model's last layer."""
    folder = tmp_path / "model"
    shutil.copytree(vision_folder("qwen3_5"), folder)
    add_copied_multi_token_layer(folder)
    drafter = RankDrafter(2)
    check(folder, drafter=drafter, speculative_config={"method": "mtp", "num_speculative_tokens": 2})
    assert drafter.drafts["all"] > 10


@pytest.mark.parametrize("family", [*FAMILIES, "mistral3"])
def test_scores_of_prompts(vision_folder: VisionFolder, family: str) -> None:
    """Those of all tokens: before, within and after images, and of what separates an image's rows."""
    folder, parts = vision_folder(family), ("Look: ", ONE, "and", THIRD, "What is it?")
    expected = pytest.approx(prompt_logprobs(folder, *parts), abs=1e-3)
    request = ask(folder, *parts, sampling=replace(GREEDY_DOZEN, max_tokens=1, prompt_logprobs=0))
    for most in (request.num_prompt_tokens, small_chunk(family)):
        with running_engine(folder, max_num_batched_tokens=most, max_num_seqs=4) as engine:
            ((output,),) = run_requests(engine, [request])
        assert [position.logprobs[0] for position in output.prompt_logprobs] == expected


@pytest.mark.parametrize("family", ["gemma3", "qwen3_vl", "idefics3"])  # each has other names for its layers
def test_adapters_change_the_text_model(vision_folder: VisionFolder, tmp_path: Path, family: str) -> None:
    """An answer with an adapter is that of the checkpoint with the adapter merged into its weights."""
    folder = vision_folder(family)
    with adapter_executor(folder) as served:
        assert not [name for name in served.spec.adapter_modules if "vision" in name or "visual" in name]
        modules = modules_of(folder, served.spec.adapter_modules, ("q_proj", "o_proj", "gate_proj", "down_proj"))
    made = [write_adapter(tmp_path / name, modules, rank=4, seed=seed) for seed, name in enumerate("ab")]
    served_adapters = [
        read_adapter(each.folder.name, str(each.folder), "", key, each.folder, 16, modules)
        for key, each in enumerate(made, 1)
    ]
    conversation = CONVERSATIONS[0]
    plain = ask(folder, *conversation)
    asked = [plain, *(dataclasses.replace(plain, model=each.name, adapter=each) for each in served_adapters)]
    merged = [merge(folder, each, tmp_path / f"merged-{each.folder.name}") for each in made]
    expected = [answer(each, *conversation) for each in (folder, *merged)]
    assert len({tuple(each) for each in expected}) == 3
    with running_engine(folder, enable_lora=True, max_loras=2, max_lora_rank=16, **CHUNKS) as engine:
        assert tokens(run_requests(engine, asked)) == expected
        again = run_requests(engine, asked)
        assert tokens(again) == expected
        assert all(choices[0].usage and choices[0].usage.cached_prompt_tokens for choices in again)


def contents(outputs: list[list[Output]]) -> list[Any]:
    return [(output.token_ids, output.logprobs) for (output,) in outputs]


@needs_native
@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("gemma3", {"dtype": "bfloat16"}), ("gemma4", {"dtype": "bfloat16"}),
        ("qwen3_vl", {"dtype": "bfloat16", "quantization": "int8"}), ("llava", {"dtype": "float16"}),
    ],
    ids=str,
)  # fmt: skip
def test_an_answer_does_not_depend_on_what_shares_the_batch(
    vision_folder: VisionFolder, family: str, form: dict[str, Any]
) -> None:
    """Bit for bit, in 16 bits and with quantized weights: alone, together, in chunks, and after cached blocks."""
    folder = vision_folder(family)
    asked = [ask(folder, *parts, sampling=replace(GREEDY_DOZEN, logprobs=2)) for parts in CONVERSATIONS]
    options = {"batch_invariant": True, "cpu_threads": 1} | form
    with running_engine(folder, enable_prefix_caching=False, **options) as engine:
        alone = [contents(run_requests(engine, [request]))[0] for request in asked]
        assert contents(run_requests(engine, asked)) == alone
    with running_engine(folder, **CHUNKS | options) as engine:
        assert contents(run_requests(engine, asked)) == alone
        assert contents(run_requests(engine, asked)) == alone
    # Prompts that differ in their images alone.
    assert asked[0].prompt_token_ids == asked[3].prompt_token_ids
    assert alone[0] != alone[3]


@pytest.mark.parametrize(
    ("family", "level"),
    [
        ("gemma3", SleepLevel.WEIGHTS_FORGOTTEN),
        ("gemma4", SleepLevel.WEIGHTS_FORGOTTEN),
        ("qwen3_vl", SleepLevel.WEIGHTS_KEPT),
    ],
)
def test_an_engine_that_slept(vision_folder: VisionFolder, family: str, level: SleepLevel) -> None:
    """In the middle of an image, too, which it computes again."""
    folder = vision_folder(family)
    request, expected = ask(folder, *CONVERSATIONS[1]), answer(folder, *CONVERSATIONS[1])
    with running_engine(folder, **CHUNKS | {"max_num_batched_tokens": small_chunk(family)}) as engine:
        for steps in (2, 5, 9):
            engine.add(steps, request)
            found = [delta for _ in range(steps) for delta in engine.step()]
            engine.rest.sleep(level)
            engine.rest.wake_up(PARTS)
            while engine.has_work:
                found += advance(engine)
            assert [token for delta in found for token in delta.token_ids] == expected


def test_ranks_that_share_contexts(vision_folder: VisionFolder) -> None:
    """An image's tokens see all of it, whichever rank has cached which."""
    check(vision_folder("gemma3"), executor=TensorExecutor(), tensor_parallel_size=4, decode_context_parallel_size=2)
