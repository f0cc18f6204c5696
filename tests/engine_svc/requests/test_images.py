"""Requests with images: which ones an engine refuses, and that they reach the ranks as they were sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine_svc.executor.channel import decode, encode
from engine_svc.executor.messages import Command, Step
from engine_svc.plan import ImageChanges, StepPlan
from engine_svc.requests.admission import make_sequences
from engine_svc.requests.request import GenerationRequest, RequestLimits
from engine_svc.requests.sequence import LiveRequest
from engine_svc.requests.validation import validate
from engine_svc.scheduler.batch import Batch
from engine_svc.service.convert import to_request
from quire.errors import InvalidRequest
from quire.images import MAX_IMAGES, MAX_IMAGES_BYTES, PIXELS, Image, ImageInput
from quire.prompt_embeds import PromptEmbeds
from quire.rpc.images import from_images
from quire.sampling import SamplingParameters
from quire.v1 import common_pb2

LIMITS = RequestLimits(
    served_model_names=("m",), vocab_size=100, max_model_len=2000, max_logprobs=5, scheduling_policy="fcfs",
    prompt_embeds_size=4, accepts_media=True,
)  # fmt: skip
PIXEL_INPUT = ImageInput(PIXELS, "uint8", (1, 3, 2, 2), bytes(range(12)))
GRID_INPUT = ImageInput("image_grid_thw", "int64", (1, 3), bytes(range(24)))
IMAGE = Image(2, 3, (PIXEL_INPUT, GRID_INPUT), (0.5, 0.25, 2.0), (-1.0, 0.0, 1.0))
PROMPT = list(range(10))


def refused(*images: Image, limits: RequestLimits = LIMITS, **fields: Any) -> str:
    request = GenerationRequest("r", fields.pop("prompt_token_ids", PROMPT), images=images, **fields)
    with pytest.raises(InvalidRequest) as caught:
        validate(request, limits)
    assert caught.value.parameter == "images"
    return str(caught.value)


def test_what_is_refused() -> None:
    validate(GenerationRequest("r", PROMPT, images=(IMAGE, IMAGE.at(5, 5))), LIMITS)
    assert "reads text only" in refused(IMAGE, limits=replace(LIMITS, accepts_media=False))
    embeds = PromptEmbeds("float32", 4, bytes(160))
    assert "images or prompt_embeds" in refused(IMAGE, prompt_token_ids=[], prompt_embeds=embeds)
    assert "overlaps another one" in refused(IMAGE, IMAGE.at(4, 3))
    assert "outside the prompt's 10 tokens" in refused(IMAGE.at(8, 3))
    assert "outside the prompt's 0 tokens" in refused(IMAGE, prompt_token_ids=[])
    assert "--max-num-batched-tokens 5 or more" in refused(
        IMAGE, IMAGE.at(5, 5), limits=replace(LIMITS, max_image_tokens=4)
    )
    assert "see whole images of at most 4" in refused(IMAGE, IMAGE.at(5, 5), limits=replace(LIMITS, image_window=4))
    film = [0, 7, 7, 1, 7, 7, 7, 2, 7, 3]  # frames of 2, 3 and 1 tokens
    for limit in ("max_image_tokens", "image_window"):
        validate(GenerationRequest("r", film, images=(IMAGE.at(1, 8),)), replace(LIMITS, **{limit: 3}))
        assert "An image takes 3 tokens" in refused(
            IMAGE.at(1, 8), prompt_token_ids=film, limits=replace(LIMITS, **{limit: 2})
        )
    assert "0 tokens at 2 is empty" in refused(IMAGE.at(2, 0))
    assert "do not match" in refused(replace(IMAGE, inputs=(replace(PIXEL_INPUT, data=bytes(11)),)))
    assert "do not match" in refused(replace(IMAGE, inputs=(replace(PIXEL_INPUT, dtype="float16"),)))
    many = [IMAGE.at(place, 1) for place in range(MAX_IMAGES + 1)]
    assert "1001 images" in refused(*many, prompt_token_ids=[1] * 1500)
    large = ImageInput(PIXELS, "uint8", (MAX_IMAGES_BYTES,), bytes(MAX_IMAGES_BYTES))
    assert f"{MAX_IMAGES_BYTES + 1} bytes" in refused(
        Image(0, 1, (large,)), Image(1, 1, (ImageInput("a", "bool", (1,), b"\0"),)),
    )  # fmt: skip


def test_requests_come_as_they_were_sent() -> None:
    images = (IMAGE, IMAGE.at(5, 4))
    message = common_pb2.Generation(request_id="r", prompt_token_ids=PROMPT, images=from_images(images))
    request = to_request(common_pb2.Generation.FromString(message.SerializeToString()))
    assert request.images == images
    assert [image.digest for image in request.images] == [IMAGE.digest] * 2
    assert request.content_bytes == 2 * (12 + 24)
    assert request.contents == ((2, IMAGE.digest), (5, IMAGE.digest))
    assert to_request(common_pb2.Generation(prompt_token_ids=PROMPT)).images == ()


def planned(request: GenerationRequest, image_keys: list[int]) -> StepPlan:
    """The plan in which the request gets its slot, and another image is begun."""
    (sequence,) = make_sequences(LiveRequest(0, request, frozenset(), 0.0), (0, 0), 100, seed=0)
    sequence.slot = 3
    batch = Batch(1, 100)
    batch.images = ImageChanges([4], {5: IMAGE})
    batch.add_new(sequence, 1, 0, image_keys)
    return batch.plan()


def test_ranks_get_pixels_to_encode_and_places_to_put_them() -> None:
    images = (IMAGE.at(2, 3), IMAGE.at(5, 4))
    plan = planned(GenerationRequest("r", PROMPT, SamplingParameters(), images=images), [7, 0])
    received = decode(encode(Step(plan)), Command)
    assert received == Step(plan)
    (sequence,) = received.plan.new_sequences
    assert sequence.images == [replace(image, inputs=(GRID_INPUT,)) for image in images]
    assert sequence.image_keys == [7, 0]
    assert received.plan.images.begun[5].digest == IMAGE.digest


def test_texts_have_none() -> None:
    plan = planned(GenerationRequest("r", PROMPT), [])
    assert [len(new.images) for new in plan.new_sequences] == [0]
    assert decode(encode(Step(plan)), Command) == Step(plan)
