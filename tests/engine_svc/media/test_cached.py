"""What caches have of prompts with images is found for the same images at the same places only.

Answers equal Transformers' each time, wherever the cached part begins and ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine_svc.core.engine import Engine
from engine_svc.media.encoder import EncodedImage, ImageEncoder
from engine_svc.plan import StepPlan
from engine_svc.requests.request import ChoiceProgress, GenerationRequest
from engine_svc.runner.pending import BegunStep
from engine_svc.runner.runner import Runner
from quire.images import Image
from quire.sampling import SamplingParameters
from tests.engine_svc.media.conftest import VisionFolder
from tests.support.run_engine import run_requests, running_engine, tokens
from tests.support.shared_folder import sharing_engine
from tests.support.vision_models import random_image
from tests.support.vision_models.conversations import GREEDY_DOZEN, Part, answer, ask

# One position for each token, and images that are computed whole; three positions, embeddings added after several
# layers, and steps that may compute a part of an image, because no layer has a window.
WHOLE, CAUSAL = "gemma3", "qwen3_vl"
families = pytest.mark.parametrize("family", [WHOLE, CAUSAL])
# Of the same size, so that prompts with them have the same token ids.
ONE, OTHER, THIRD = (random_image(60, 40, seed) for seed in (1, 2, 3))
BLOCK = 4
# Several choices that are all the likeliest tokens.
LIKELIEST = SamplingParameters(temperature=1.0, top_k=1, seed=3, max_tokens=12, ignore_eos=True)


def cached(engine: Engine, request: GenerationRequest) -> tuple[list[int], int]:
    """Runs a request; returns its answer, and how many tokens of its prompt were cached."""
    ((output,),) = run_requests(engine, [request])
    assert output.usage is not None
    return output.token_ids, output.usage.cached_prompt_tokens


def whole_blocks(num_tokens: int) -> int:
    return num_tokens // BLOCK * BLOCK


def common(one: GenerationRequest, other: GenerationRequest, most: int) -> int:
    """Tokens in whole blocks that two prompts have in common, among the first `most`."""
    pairs = zip(one.prompt_token_ids, other.prompt_token_ids, strict=False)
    differing = (place for place, (mine, theirs) in enumerate(pairs) if mine != theirs)
    return whole_blocks(min(next(differing, most), most))


@families
def test_another_image_is_found_up_to_the_block_in_which_it_begins(vision_folder: VisionFolder, family: str) -> None:
    folder = vision_folder(family)
    conversations: list[tuple[Part, ...]] = [(ONE, "What is this?"), (OTHER, "What is this?")]
    asked, other = [ask(folder, *parts) for parts in conversations]
    expected = [answer(folder, *parts) for parts in conversations]
    assert asked.prompt_token_ids == other.prompt_token_ids
    assert expected[0] != expected[1]
    everything = whole_blocks(asked.num_prompt_tokens - 1)
    with running_engine(folder, block_size=BLOCK) as engine:
        assert cached(engine, asked) == (expected[0], 0)
        assert cached(engine, other) == (expected[1], whole_blocks(asked.images[0].offset))
        assert cached(engine, asked) == (expected[0], everything)
        assert cached(engine, other) == (expected[1], everything)
        assert cached(engine, dataclasses.replace(asked, cache_salt="another's")) == (expected[0], 0)


@families
def test_conversations_that_share_some_images(vision_folder: VisionFolder, family: str) -> None:
    folder = vision_folder(family)
    conversations: list[tuple[Part, ...]] = [
        (ONE, OTHER), (ONE, THIRD), (OTHER, ONE), (ONE, ONE), (ONE, OTHER, THIRD), (ONE,), ("I", ONE),
    ]  # fmt: skip
    asked = [ask(folder, *parts) for parts in conversations]
    first, second = (image.offset for image in asked[0].images)
    with running_engine(folder, block_size=BLOCK) as engine:
        found = [cached(engine, request) for request in asked]
    assert [each for each, _ in found] == [answer(folder, *parts) for parts in conversations]
    counts = [count for _, count in found]
    assert counts[:4] == [0, whole_blocks(second), whole_blocks(first), whole_blocks(second)]
    assert counts[4] == common(asked[4], asked[0], asked[4].images[2].offset) > second
    assert counts[5] == common(asked[5], asked[0], second)
    assert counts[6] == common(asked[6], asked[0], first)


@pytest.mark.usefixtures("at_once")
def test_wherever_the_cached_part_ends(vision_folder: VisionFolder) -> None:
    """Before, within, between and after images: an earlier request is canceled after each of its steps."""
    folder, parts = vision_folder(CAUSAL), (ONE, "and", OTHER, "Well?")
    request, expected = ask(folder, *parts), answer(folder, *parts)
    steps = (request.num_prompt_tokens - 1) // BLOCK
    with running_engine(folder, block_size=BLOCK, max_num_batched_tokens=BLOCK) as engine:
        for count in range(1, steps + 1):
            salted = dataclasses.replace(request, cache_salt=str(count))
            engine.add(0, salted)
            for _ in range(1 + count):  # the first one encodes
                engine.step()
            engine.abort(0)
            engine.step()
            assert cached(engine, salted) == (expected, count * BLOCK)


@pytest.mark.parametrize(("family", "block_size"), [(WHOLE, 16), (WHOLE, 64), (CAUSAL, BLOCK), (CAUSAL, 64)])
def test_several_choices_share_the_prompt(vision_folder: VisionFolder, family: str, block_size: int) -> None:
    """Choices after the first compute again what the last block has of the prompt, such as the end of an image."""
    folder = vision_folder(family)
    conversations: list[tuple[Part, ...]] = [("What is this?", ONE), (ONE, OTHER), ("Text.",)]
    asked = [ask(folder, *parts, sampling=replace(LIKELIEST, n=3)) for parts in conversations]
    with running_engine(folder, block_size=block_size, max_num_batched_tokens=50) as engine:
        for _ in range(2):
            for choices, parts in zip(run_requests(engine, asked), conversations, strict=True):
                assert [choice.token_ids for choice in choices] == [answer(folder, *parts)] * 3


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[StepPlan]:
    """All plans that runners of this process get."""
    found, begin = list[StepPlan](), Runner.begin

    def note(self: Runner, plan: StepPlan) -> BegunStep:
        found.append(plan)
        return begin(self, plan)

    monkeypatch.setattr(Runner, "begin", note)
    return found


def preempted(plans: list[StepPlan], request: GenerationRequest) -> list[tuple[int, int]]:
    """How many tokens the request had computed each time that it was preempted, and had when it went on."""
    found, slot, computed = list[tuple[int, int]](), -1, 0
    for plan in plans:
        for new in plan.new_sequences:
            if new.token_ids[: new.num_prompt_tokens] == request.prompt_token_ids:
                found += [(computed, new.num_computed_tokens)] if slot >= 0 else []
                slot = new.slot
            elif new.slot == slot:
                slot = len(plans)  # another one has its slot now
        computed = next(
            (each.num_computed_tokens + each.num_new_tokens for each in plan.scheduled if each.slot == slot), computed
        )
    return found


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("caching", [True, False])
def test_preempted_ones_are_computed_again(vision_folder: VisionFolder, plans: list[StepPlan], caching: bool) -> None:
    """While a prompt with images is computed token by token, the answer to another one takes its blocks."""
    folder, parts = vision_folder(CAUSAL), (ONE, "and", OTHER, "?")
    older, asked = ask(folder, "Hi", sampling=replace(GREEDY_DOZEN, max_tokens=50)), ask(folder, *parts)
    expected = [answer(folder, "Hi", count=50), answer(folder, *parts)]
    lengths = [request.num_prompt_tokens + len(each) for request, each in zip((older, asked), expected, strict=True)]
    prompts = older.num_prompt_tokens + asked.num_prompt_tokens
    at, after = set[bool](), set[bool]()
    for num_blocks in range(-(-max(lengths) // BLOCK), prompts // BLOCK + 8, 2):
        plans.clear()
        with running_engine(
            folder, num_blocks, block_size=BLOCK, max_num_batched_tokens=2, enable_prefix_caching=caching
        ) as engine:
            assert tokens(run_requests(engine, [older, asked])) == expected
        preemptions = preempted(plans, asked)
        for computed, kept in preemptions:
            at |= {image.offset < computed < image.end for image in asked.images}
            after |= {image.offset < kept < image.end for image in asked.images}
        if (True in at and True in after) or (at and not preemptions):
            break  # both have been seen, or there is room for both from here on
    assert True in at, "none was preempted within an image"
    assert (True in after) == caching, "none began again within an image"


@pytest.mark.parametrize("caching", [True, False])
def test_whole_images_are_computed_again(vision_folder: VisionFolder, caching: bool) -> None:
    """Three choices have room for the prompt that they share, but not for their answers."""
    folder, parts = vision_folder(WHOLE), (ONE, "and", OTHER, "?")
    request = ask(folder, *parts, sampling=replace(LIKELIEST, n=3, max_tokens=30))
    with running_engine(
        folder, 70, block_size=BLOCK, max_num_batched_tokens=17, max_num_seqs=4, enable_prefix_caching=caching
    ) as engine:
        (choices,) = run_requests(engine, [request])
    assert [choice.token_ids for choice in choices] == [answer(folder, *parts, count=30)] * 3
    assert any(choice.usage and choice.usage.preemptions for choice in choices)


def test_a_prompt_goes_on_within_a_whole_image(vision_folder: VisionFolder) -> None:
    """Its other choices, and the same prompt again, find the blocks that end in the middle of the image."""
    folder, parts, block = vision_folder(WHOLE), ("What is this?", ONE), 32
    request = ask(folder, *parts, sampling=replace(LIKELIEST, n=3))
    assert request.images[0].offset < block < request.images[0].end
    assert block <= request.num_prompt_tokens - 1 < 2 * block
    with running_engine(folder, block_size=block) as engine:
        for cached_tokens in (0, block):
            (choices,) = run_requests(engine, [request])
            assert [choice.token_ids for choice in choices] == [answer(folder, *parts)] * 3
            (usage,) = (choice.usage for choice in choices if choice.usage)
            assert usage.cached_prompt_tokens == cached_tokens


@pytest.mark.parametrize(("family", "caching"), [(WHOLE, True), (WHOLE, False), (CAUSAL, True)])
def test_ones_that_moved_go_on(vision_folder: VisionFolder, family: str, caching: bool) -> None:
    """Wherever they left another worker, with one choice and several."""
    folder, parts = vision_folder(family), (ONE, "and", OTHER, "?")
    expected = answer(folder, *parts)
    one, several = (ask(folder, *parts, sampling=sampling) for sampling in (LIKELIEST, replace(LIKELIEST, n=2)))
    cuts = range(0, 12, 3)
    moved = [dataclasses.replace(one, progress=(ChoiceProgress(expected[:cut]),)) for cut in cuts]
    progress = (ChoiceProgress(expected[:5]), ChoiceProgress(expected[:9]))
    moved.append(dataclasses.replace(several, progress=progress))
    with running_engine(folder, max_num_batched_tokens=33, enable_prefix_caching=caching) as engine:
        for _ in range(2):
            *found, choices = run_requests(engine, moved)
            assert tokens(found) == [expected[cut:] for cut in cuts]
            assert [choice.token_ids for choice in choices] == [expected[5:], expected[9:]]


def alone(engine: Engine, folder: Path, *conversations: tuple[Part, ...]) -> list[int]:
    """Runs conversations one after the other, checks the answers, and returns how much of each prompt was cached."""
    found = [cached(engine, ask(folder, *parts)) for parts in conversations]
    assert [each for each, _ in found] == [answer(folder, *parts) for parts in conversations]
    return [count for _, count in found]


def test_blocks_come_back_from_the_host(vision_folder: VisionFolder) -> None:
    """The device has room for about one conversation at a time."""
    folder = vision_folder(CAUSAL)
    longest = ask(folder, ONE, "What?").num_prompt_tokens
    blocks = (longest + 12) // BLOCK + 2
    begin, everything = whole_blocks(ask(folder, ONE).images[0].offset), whole_blocks(longest - 1)
    with running_engine(folder, blocks, num_host_blocks=4 * blocks, block_size=BLOCK) as engine:
        first = alone(engine, folder, (ONE, "What?"), (OTHER, "What?"), (THIRD, "What?"))
        assert first == [0, begin, begin]
        assert alone(engine, folder, (ONE, "What?"), (OTHER, "What?"), (THIRD, "What?")) == [everything] * 3
        assert engine.load().used_host_blocks > 0


def test_a_shared_folder_carries_blocks_to_other_workers(vision_folder: VisionFolder, tmp_path: Path) -> None:
    folder = vision_folder(CAUSAL)

    with sharing_engine(folder, tmp_path, "kv_producer", block_size=BLOCK) as first:
        alone(first, folder, (ONE, "What?"))
    request = ask(folder, ONE, "What?")
    begin, everything = whole_blocks(request.images[0].offset), whole_blocks(request.num_prompt_tokens - 1)
    with sharing_engine(folder, tmp_path, "kv_consumer", block_size=BLOCK) as second:
        assert alone(second, folder, (OTHER, "What?"), (ONE, "What?")) == [begin, everything]
        assert second.load().counters.external_cache_hits == everything


Encoded = Callable[[], int]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Encoded:
    """Returns a function that returns the number of images encoded since it was last called."""
    calls, encode = list[Image](), ImageEncoder.encode

    def note(self: ImageEncoder, image: Image) -> EncodedImage:
        calls.append(image)
        return encode(self, image)

    def count() -> int:
        found = len(calls)
        calls.clear()
        return found

    monkeypatch.setattr(ImageEncoder, "encode", note)
    return count


def test_images_that_come_again_are_not_encoded_again(vision_folder: VisionFolder, encoded: Encoded) -> None:
    folder = vision_folder(CAUSAL)
    with running_engine(folder, enable_prefix_caching=False) as engine:
        alone(engine, folder, (ONE, "What is this?"))
        assert encoded() == 1
        alone(engine, folder, (ONE, "What is this?"), ("Another place:", OTHER, ONE), (OTHER,))
        assert encoded() == 1
        several = ask(folder, THIRD, sampling=replace(LIKELIEST, n=3))
        together = [several, several, ask(folder, THIRD, THIRD, ONE)]
        found = run_requests(engine, together)
        assert {tuple(choice.token_ids) for choice in (*found[0], *found[1])} == {tuple(answer(folder, THIRD))}
        assert found[2][0].token_ids == answer(folder, THIRD, THIRD, ONE)
        assert encoded() == 1


def test_of_images_those_that_came_last_are_kept(vision_folder: VisionFolder, encoded: Encoded) -> None:
    folder = vision_folder(WHOLE)
    size = ask(folder, ONE).images[0].num_tokens
    with running_engine(folder, enable_prefix_caching=False, max_num_batched_tokens=2 * size + 3) as engine:
        for image, is_new in (
            (ONE, True), (OTHER, True), (ONE, False), (OTHER, False), (ONE, False),
            (THIRD, True), (ONE, False), (THIRD, False), (OTHER, True), (THIRD, False), (ONE, True),
        ):  # fmt: skip
            alone(engine, folder, (image,))
            assert encoded() == is_new


def test_an_image_larger_than_a_step_is_encoded_once(vision_folder: VisionFolder, encoded: Encoded) -> None:
    folder = vision_folder(CAUSAL)
    with running_engine(folder, enable_prefix_caching=False, max_num_batched_tokens=5) as engine:
        alone(engine, folder, (ONE, OTHER), (OTHER,))
        assert encoded() == 2
        alone(engine, folder, (ONE,), (ONE, ONE))
        assert encoded() == 1
