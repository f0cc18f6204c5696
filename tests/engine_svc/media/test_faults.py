"""An image that cannot be encoded fails its own request; others in the same step, and later ones, never notice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine_svc.media.encoder import ImageEncoder
from engine_svc.media.encoder_model import load_encoder
from engine_svc.media.unfit import UnfitImage
from engine_svc.models.decoder import Decoder
from engine_svc.requests.request import GenerationRequest
from quire.images import Image
from quire.media import MediaKind
from tests.engine_svc.media.conftest import VisionFolder
from tests.support.run_engine import outcomes, running_engine
from tests.support.tensor_executor import TensorExecutor
from tests.support.vision_models import random_image
from tests.support.vision_models.conversations import answer, ask, with_image, with_inputs

ONE, OTHER = random_image(60, 40, 1), random_image(30, 70, 2)
QUESTION = ("Look at this: ", ONE, "What do you see?")
NEIGHBORS = (("And this?", OTHER), ("Only text.",))
# A change of a request with one image → words of the failure.
Fault = Callable[[GenerationRequest], GenerationRequest]


def inputs(**changed: Any) -> Fault:
    return lambda request: with_inputs(request, **changed)


def fields(**changed: Any) -> Fault:
    return lambda request: with_image(request, **changed)


def grid(*sizes: int) -> Fault:
    return inputs(image_grid_thw=np.array([sizes], np.int64))


def pixels(*shape: int) -> Fault:
    return inputs(pixel_values=np.zeros(shape, np.uint8))


def fewer_tokens(request: GenerationRequest) -> GenerationRequest:
    return with_image(request, num_tokens=request.images[0].num_tokens - 1)


def before_its_tokens(request: GenerationRequest) -> GenerationRequest:
    return with_image(request, offset=request.images[0].offset - 2, num_tokens=1)


def split_by_text(request: GenerationRequest) -> GenerationRequest:
    """Puts a text token among the image's tokens."""
    (image,) = request.images
    tokens = [*request.prompt_token_ids]
    tokens.insert(image.offset + 3, tokens[0])
    changed = with_image(request, num_tokens=image.num_tokens + 1)
    return GenerationRequest("r", tokens, request.sampling, images=changed.images)


ANY_FAMILY: dict[str, tuple[Fault, str]] = {
    "no pixels": (inputs(pixel_values=None), "it has no pixel_values"),
    "no dimension": (pixels(), "uint8 []"),
    "empty": (pixels(2**31, 3, 0, 28), "has an empty dimension"),
    "no scales": (fields(pixel_scale=()), "0 scales and 3 shifts"),
    "more shifts": (fields(pixel_shift=(0.0,) * 10**6), "3 scales and 1000000 shifts"),
    "not a number": (fields(pixel_scale=(float("nan"),) * 3), "overflowed"),
    "infinite": (fields(pixel_shift=(float("inf"), 0.0, 0.0)), "overflowed"),
}  # fmt: skip
GRIDS: dict[str, tuple[Fault, str]] = {
    "fewer tokens": (fewer_tokens, "3 x 4 embeddings does not fit 11 tokens"),
    "before its tokens": (before_its_tokens, "3 x 4 embeddings does not fit 0 tokens"),
    "split by text": (split_by_text, "other tokens between its own"),
    "a smaller grid": (grid(1, 2, 2), "the encoder takes [4, 147]"),
    "a grid that would take terabytes": (grid(1, 10**6, 10**6), "takes [1000000000000, 147] or ["),
    "a grid that overflows": (grid(2**40, 2**40, 2**40), "as image_grid_thw says"),
    "many frames": (grid(10**6, 6, 8), "takes [48000000, 147]"),
    "an empty grid": (grid(0, 0, 0), "positive multiples of 2"),
    "a negative grid": (grid(1, -6, -8), "positive multiples of 2"),
    "odd rows": (grid(1, 3, 16), "positive multiples of 2"),
    "two sizes": (grid(6, 8), "takes int64 [1, 3]"),
    "two grids": (inputs(image_grid_thw=np.ones((2, 3), np.int64)), "takes int64 [1, 3]"),
    "a grid of bytes": (inputs(image_grid_thw=np.array([[1, 6, 8]], np.uint8)), "takes int64 [1, 3]"),
    "no grid": (inputs(image_grid_thw=None), "it needs image_grid_thw"),
    "fewer patches": (pixels(44, 147), "the encoder takes [48, 147]"),
    "more patches": (pixels(52, 147), "the encoder takes [48, 147]"),
    "patches of another size": (pixels(48, 150), "the encoder takes [48, 147]"),
    "pixels instead of patches": (pixels(1, 3, 28, 28), "the encoder takes [48, 147]"),
}  # fmt: skip


def grid_of_places(columns: int, rows: int) -> npt.NDArray[np.int64]:
    """The places of an image's patches."""
    return np.indices((rows, columns))[::-1].reshape(2, -1).T[None].copy()


def places(columns: int, rows: int, **others: Any) -> Fault:
    """Places of the patches of another image."""
    return inputs(image_position_ids=grid_of_places(columns, rows), **others)


def moved(patch: int, *place: int) -> Fault:
    """Another place of one of the image's patches, which has 20 columns and 12 rows of them."""
    found = grid_of_places(20, 12)
    found[0, patch] = place
    return inputs(image_position_ids=found)


PLACES: dict[str, tuple[Fault, str]] = {
    "fewer tokens": (fewer_tokens, "60 embeddings for 59 tokens"),
    "no places": (inputs(image_position_ids=None), "it needs image_position_ids, int64 [images, patches, 2]"),
    "places of bytes": (inputs(image_position_ids=np.zeros((1, 240, 2), np.uint8)), "it needs image_position_ids"),
    "places of no image": (inputs(image_position_ids=np.zeros((240, 2), np.int64)), "it needs image_position_ids"),
    "two images": (inputs(image_position_ids=np.zeros((2, 240, 2), np.int64)), "takes [2, 240, 48], as image_pos"),
    "fewer places": (places(20, 10), "takes [1, 200, 48], as image_position_ids says"),
    "more places": (places(20, 20), "takes [1, 400, 48], as image_position_ids says"),
    "patches of another size": (pixels(1, 240, 50), "takes [1, 240, 48], as image_position_ids says"),
    "pixels instead of patches": (pixels(1, 3, 48, 80), "takes [1, 240, 48], as image_position_ids says"),
    "odd rows": (places(16, 15), "in multiples of 2"),
    "columns beyond the table": (moved(239, 10**9, 11), "up to 140 patches along each side"),
    "a column beyond the table": (moved(3, 10**9, 0), "of whole images of the same size, row by row"),
    "padding": (moved(239, -1, -1), "of whole images of the same size, row by row"),
    "a patch twice": (moved(3, 2, 0), "of whole images of the same size, row by row"),
    "long rows": (places(160, 2, pixel_values=np.zeros((1, 320, 48), np.uint8)), "up to 140 patches along each side"),
}  # fmt: skip
STILL_GRIDS: dict[str, tuple[Fault, str]] = {
    "fewer tokens": (fewer_tokens, "15 embeddings for 14 tokens"),
    "before its tokens": (before_its_tokens, "15 embeddings for 0 tokens"),
    "a smaller grid": (grid(1, 2, 2), "the encoder takes [4, 3, 7, 7]"),
    "a grid that would take terabytes": (grid(1, 10**6, 10**6), "takes [1000000000000, 3, 7, 7], as image_grid_thw"),
    "a grid that overflows": (grid(2**40, 2**40, 2**40), "as image_grid_thw says"),
    "frames": (
        inputs(image_grid_thw=np.array([[5, 6, 10]], np.int64), pixel_values=np.zeros((300, 3, 7, 7), np.uint8)),
        "has 5 frames, but the model reads only still images",
    ),
    "an empty grid": (grid(0, 0, 0), "positive multiples of 2"),
    "odd rows": (grid(1, 3, 20), "positive multiples of 2"),
    "two grids": (inputs(image_grid_thw=np.ones((2, 3), np.int64)), "takes int64 [1, 3]"),
    "no grid": (inputs(image_grid_thw=None), "it needs image_grid_thw"),
    "more patches": (pixels(64, 3, 7, 7), "the encoder takes [60, 3, 7, 7]"),
    "flat patches": (pixels(60, 147), "the encoder takes [60, 3, 7, 7]"),
    "patches of another size": (pixels(60, 3, 7, 14), "the encoder takes [60, 3, 7, 7]"),
}  # fmt: skip


def tiles(*shapes: tuple[int, int]) -> Fault:
    """Other shapes of the image's seven tiles, which have 120 patches."""
    return inputs(spatial_shapes=np.array(shapes, np.int64))


TILES: dict[str, tuple[Fault, str]] = {
    "fewer tokens": (fewer_tokens, "30 embeddings for 29 tokens"),
    "before its tokens": (before_its_tokens, "30 embeddings for 0 tokens"),
    "no shapes": (inputs(spatial_shapes=None), "it needs spatial_shapes, int64 [tiles, 2]"),
    "shapes of bytes": (inputs(spatial_shapes=np.full((1, 2), 4, np.uint8)), "it needs spatial_shapes"),
    "a shape alone": (inputs(spatial_shapes=np.array([10, 12], np.int64)), "it needs spatial_shapes"),
    "three sides": (inputs(spatial_shapes=np.ones((1, 3), np.int64)), "it needs spatial_shapes"),
    "no tiles": (inputs(spatial_shapes=np.ones((0, 2), np.int64)), "has an empty dimension"),
    "odd rows": (tiles((3, 40)), "spatial_shapes must have positive multiples of 2"),
    "an empty tile": (tiles((10, 12), (0, 2)), "must have positive multiples of 2"),
    "negative sides": (tiles((-10, -12)), "must have positive multiples of 2"),
    "a tile that would take terabytes": (tiles((10**6, 10**6)), "takes [1000000000000, 147], as spatial_shapes says"),
    "a tile that overflows": (tiles((2**62, 2**62)), "as spatial_shapes says"),
    "tiles of many shapes": (tiles(*((2, 2), (4, 2)) * 10), "must be the same for all tiles but the last one"),
    "fewer tiles": (tiles((4, 4)), "takes [16, 147], as spatial_shapes says"),
    "patches of another size": (pixels(120, 150), "takes [120, 147], as spatial_shapes says"),
    "filled up": (pixels(7, 24, 147), "takes [120, 147], as spatial_shapes says"),
    "a mask": (inputs(pixel_attention_mask=np.ones((7, 24), np.bool_)), "patches are sent without padding"),
}  # fmt: skip


def masked(*values: bool, dtype: type = np.bool_) -> Fault:
    return inputs(pixel_attention_mask=np.array([values], dtype))


MASKED_TILES: dict[str, tuple[Fault, str]] = {
    "fewer tokens": (fewer_tokens, "20 embeddings for 19 tokens"),
    "smaller": (pixels(1, 5, 3, 14, 14), "takes […, 28, 28]"),
    "gray": (pixels(1, 5, 1, 28, 28), "for pixels with 1 color channels"),
    "not nested": (pixels(5, 3, 28, 28), "takes [1, tiles, 3, 28, 28]"),
    "two images": (pixels(2, 5, 3, 28, 28), "takes [1, tiles, 3, 28, 28]"),
    "fewer tiles": (pixels(1, 4, 3, 28, 28), "it needs pixel_attention_mask, bool [1, 4], all of it true"),
    "no mask": (inputs(pixel_attention_mask=None), "it needs pixel_attention_mask, bool [1, 5]"),
    "a mask with holes": (masked(True, True, False, True, True), "bool [1, 5], all of it true"),
    "indices beyond the tiles": (masked(*range(5), dtype=np.int64), "bool [1, 5], all of it true"),
    "a mask of pixels": (inputs(pixel_attention_mask=np.ones((1, 5, 28, 28), np.bool_)), "bool [1, 5], all"),
    "other numbers of tokens": (inputs(tile_fine_mask=np.ones(1, np.bool_)), "80 embeddings for 20 tokens"),
    "two routes": (inputs(tile_fine_mask=np.ones(2, np.bool_)), "tile_fine_mask must be bool [1] and true"),
}  # fmt: skip


def merged(*sizes: int, dtype: type = np.int64) -> Fault:
    return inputs(image_merge_sizes=np.array(sizes, dtype))


OWN_MERGE: dict[str, tuple[Fault, str]] = {
    "fewer tokens": (fewer_tokens, "54 embeddings for 53 tokens"),
    "a smaller grid": (grid(1, 2, 2), "the encoder takes [4, 147]"),
    "a grid that would take terabytes": (grid(1, 10**6, 10**6), "takes [1000000000000, 147]"),
    "a grid that overflows": (grid(2**40, 2**40, 2**40), "as image_grid_thw says"),
    "no grid": (inputs(image_grid_thw=None), "it needs image_grid_thw"),
    "frames": (grid(6, 3, 3), "has 6 frames, but the model reads only still images"),
    "no merge": (inputs(image_merge_sizes=None), "it needs image_merge_sizes, int64 [1], at least 1"),
    "merge of nothing": (merged(0), "it needs image_merge_sizes"),
    "negative merge": (merged(-1), "it needs image_merge_sizes"),
    "two merges": (merged(1, 1), "takes int64 [1]"),
    "a merge in bytes": (merged(1, dtype=np.uint8), "takes int64 [1]"),
    "fewer embeddings": (merged(3), "6 embeddings for 54 tokens"),
    "a merge beyond the grid": (merged(2**62), "positive multiples of 4611686018427387904"),
    "more patches": (pixels(60, 147), "the encoder takes [54, 147]"),
    "patches of another size": (pixels(54, 150), "the encoder takes [54, 147]"),
}  # fmt: skip
FAULTS: dict[str, dict[str, tuple[Fault, str]]] = {
    "llava": ANY_FAMILY | {
        "fewer tokens": (fewer_tokens, "16 embeddings for 15 tokens"),
        "before its tokens": (before_its_tokens, "16 embeddings for 0 tokens"),
        "smaller": (pixels(1, 3, 14, 14), "takes […, 28, 28]"),
        "gray": (pixels(1, 1, 28, 28), "for pixels with 1 color channels"),
        "two images": (pixels(2, 3, 28, 28), "32 embeddings for 16 tokens"),
        "flat": (pixels(48, 294), "[…, channels, rows, columns]"),
        "what its own encoder does not take": (inputs(image_sizes=np.ones((1, 2), np.int64)), "one of the images: "),
        "many sizes": (inputs(image_sizes=np.ones((10**5, 2), np.int64)), "takes int64 [1, 2]"),
    },
    "gemma4": ANY_FAMILY | PLACES,
    "got_ocr2": ANY_FAMILY | {
        "fewer tokens": (fewer_tokens, "256 embeddings for 255 tokens"),
        "smaller": (pixels(1, 3, 28, 28), "takes […, 64, 64]"),
        "more tiles": (pixels(3, 3, 64, 64), "768 embeddings for 256 tokens"),
        "tiles of an image of its own": (pixels(1, 1, 3, 64, 64), "one of the images: "),
    },
    "granite4_vision": ANY_FAMILY | {
        "fewer tokens": (fewer_tokens, "14 embeddings for 13 tokens"),
        "smaller": (pixels(1, 3, 3, 14, 14), "takes […, 28, 28]"),
        "fewer tiles": (pixels(1, 1, 3, 28, 28), "one of the images: "),
        "no sizes": (inputs(image_sizes=None), "one of the images: "),
        "sizes of another image": (inputs(image_sizes=np.array([[10, 1000]], np.int64)), "4 embeddings for 14 tokens"),
        "negative sizes": (inputs(image_sizes=np.array([[-(2**62), 2**62]], np.int64)), "one of the images: "),
        "many sizes": (inputs(image_sizes=np.ones((10**5, 2), np.int64)), "takes int64 [1, 2]"),
    },
    "granite_docling": ANY_FAMILY | MASKED_TILES,
    "kimi_k25": ANY_FAMILY | STILL_GRIDS,
    "lfm2_vl": ANY_FAMILY | TILES,
    "llama4": ANY_FAMILY | {
        "fewer tokens": (fewer_tokens, "20 embeddings for 19 tokens"),
        "before its tokens": (before_its_tokens, "20 embeddings for 0 tokens"),
        "smaller": (pixels(5, 3, 14, 14), "takes […, 28, 28]"),
        "gray": (pixels(5, 1, 28, 28), "for pixels with 1 color channels"),
        "fewer tiles": (pixels(4, 3, 28, 28), "16 embeddings for 20 tokens"),
        "more tiles": (pixels(50, 3, 28, 28), "200 embeddings for 20 tokens"),
        "tiles of an image of its own": (pixels(1, 5, 3, 28, 28), "one of the images: "),
    },
    "qwen2_5_vl": ANY_FAMILY | GRIDS,
    "qwen3_vl": ANY_FAMILY | GRIDS,
    "video_llama3": ANY_FAMILY | OWN_MERGE,
}  # fmt: skip


def check_faults(folder: Path, faults: dict[str, tuple[Fault, str]], **options: Any) -> None:
    good = [ask(folder, *parts) for parts in (QUESTION, *NEIGHBORS)]
    expected = [(answer(folder, *parts), None) for parts in (QUESTION, *NEIGHBORS)]
    broken = [fault(good[0]) for fault, _ in faults.values()]
    with running_engine(folder, max_num_seqs=64, num_blocks=400, **options) as engine:
        *found, one, other = outcomes(engine, [*broken, *good[1:]])
        assert [one, other] == expected[1:]
        for (tokens, error), (name, (_, words)) in zip(found, faults.items(), strict=True):
            assert error is not None, name
            assert error.reason == "REQUEST_FAULT", name
            assert words in error.message, (name, error.message)
            assert not tokens, name
        # Nothing of what the broken ones computed in the place of the image is found.
        assert outcomes(engine, good) == expected


@pytest.mark.parametrize("family", FAULTS)
def test_faults(vision_folder: VisionFolder, family: str) -> None:
    check_faults(vision_folder(family), FAULTS[family])


def test_faults_of_images_in_chunks(vision_folder: VisionFolder) -> None:
    check_faults(vision_folder("qwen3_vl"), FAULTS["qwen3_vl"], max_num_batched_tokens=20, block_size=4)


def test_ranks_stay_in_step(vision_folder: VisionFolder) -> None:
    options = {"executor": TensorExecutor(), "tensor_parallel_size": 2, "cpu_threads": 1}
    check_faults(vision_folder("qwen3_vl"), FAULTS["qwen3_vl"], **options)


@pytest.mark.slow
def test_rank_processes_stay_in_step(vision_folder: VisionFolder) -> None:
    """Also when the next step is already planned before it is known that a request fails."""
    check_faults(vision_folder("qwen2_5_vl"), FAULTS["qwen2_5_vl"], tensor_parallel_size=2, cpu_threads=1)


def test_an_encoder_that_ran_out_of_memory_is_asked_again(
    vision_folder: VisionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, encode, calls = vision_folder("llava"), ImageEncoder.encode, list[bytes]()

    def scarce(self: ImageEncoder, image: Image) -> Any:
        calls.append(image.digest)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("details")
        return encode(self, image)

    monkeypatch.setattr(ImageEncoder, "encode", scarce)
    good = ask(folder, *QUESTION)
    with running_engine(folder) as engine:
        ((tokens, error),) = outcomes(engine, [good])
        assert (tokens, getattr(error, "reason", None)) == ([], "REQUEST_FAULT")
        assert "OutOfMemoryError" in str(error)
        assert "details" not in str(error)
        assert outcomes(engine, [good]) == [(answer(folder, *QUESTION), None)]
    assert calls == [good.images[0].digest] * 2


def test_images_beside_a_row_that_the_model_cannot_run(
    vision_folder: VisionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sequence of the step then runs alone, with the rows of its own images."""
    folder, forward = vision_folder("qwen3_vl"), Decoder.forward
    bad = ask(folder, "~").prompt_token_ids[-20:]
    good = [ask(folder, *parts) for parts in (QUESTION, *NEIGHBORS)]
    (broken,) = {*bad} - {token for request in good for token in request.prompt_token_ids}

    def refuse(self: Decoder, token_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        if broken in token_ids:
            raise ValueError("kernel")
        return forward(self, token_ids, *rest)

    with running_engine(folder, max_num_batched_tokens=48, enforce_eager=True) as engine:
        monkeypatch.setattr(Decoder, "forward", refuse)
        found = outcomes(engine, [good[0], GenerationRequest("r", bad, good[0].sampling), *good[1:]])
    assert getattr(found.pop(1)[1], "reason", None) == "REQUEST_FAULT"
    assert found == [(answer(folder, *parts), None) for parts in (QUESTION, *NEIGHBORS)]


BOTH = frozenset(MediaKind)
# Inputs of a few megabytes for which an encoder of the usual size would allocate gigabytes, or take minutes.
GREEDY_INPUTS: dict[str, tuple[str, Fault, str]] = {
    # Of one patch each, to which the positions of all patches of a tile would be added.
    "tiles of one patch": ("aya_vision", pixels(20_000, 3, 7, 7), "takes […, 28, 28]"),
    "smaller tiles": ("llama4", pixels(20_000, 3, 14, 14), "takes […, 28, 28]"),
    "tiles of one patch of Aria": ("aria", pixels(500, 3, 70, 70), "takes […, 490, 490] or […, 980, 980]"),
    "a mask of Aria for another size": (
        "aria", inputs(pixel_mask=np.ones((1, 9000, 980), np.bool_)), "without channels",
    ),
    "tiles of one patch of Command A Vision": ("cohere2_vision", pixels(20_000, 3, 7, 7), "takes […, 28, 28]"),
    "tiles of one patch, for one image": ("llava_onevision", pixels(20_000, 3, 14, 14), "takes […, 28, 28]"),
    "a mask of many patches": (
        "idefics3",
        inputs(
            pixel_values=np.ones((1, 1, 3, 7, 7), np.uint8), pixel_attention_mask=np.ones((1, 1, 2800, 2800), np.bool_)
        ),
        "without channels",
    ),
    "the sizes of many images": ("llava_next", inputs(image_sizes=np.ones((500_000, 2), np.int64)), "int64 [1, 2]"),
    "many sizes of one image": ("pixtral", inputs(image_sizes=np.ones((500_000, 2), np.int64)), "int64 [1, 2]"),
    "many batches": ("llava_onevision", inputs(batch_num_images=np.ones(10**6, np.int64)), "int64 [1]"),
    "a video as an image": ("qwen2_5_vl", inputs(pixel_values_videos=np.ones((1, 9, 3, 28, 28), np.uint8)), "not what"),
    "a video beside an image": (
        "llava_onevision", inputs(pixel_values_videos=np.ones((1, 9, 3, 28, 28), np.uint8)), "not alone",
    ),
    "a video of many tiny frames": (
        "llava_onevision",
        inputs(
            pixel_values=None, image_sizes=None, batch_num_images=None,
            pixel_values_videos=np.ones((1, 20_000, 3, 14, 14), np.uint8),
        ), "takes [1, frames, channels, 28, 28]",
    ),
    "more patches than the grid has": (
        "qwen2_5_vl", inputs(pixel_values=np.ones((20_000, 2 * 3 * 49), np.uint8)), "] or [",
    ),
    "patches of another size": (
        "paddleocr_vl", inputs(pixel_values=np.ones((16, 3, 700, 700), np.uint8)), "takes [48, 3, 7, 7], as image_grid",
    ),
    "shifts of channels that do not exist": (
        "internvl",
        lambda request: with_image(
            with_inputs(request, pixel_values=np.zeros((1, 1, 1000, 1000), np.uint8)), pixel_scale=(1.0,),
            pixel_shift=(0.0,) * 10**6,
        ),
        "1 scales and 1000000 shifts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GREEDY_INPUTS)
def test_what_would_take_all_memory_is_not_given_to_the_encoder(
    vision_folder: VisionFolder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    family, fault, words = GREEDY_INPUTS[name]
    folder = vision_folder(family)
    config = json.loads((folder / "config.json").read_text())
    model = load_encoder(folder, config, torch.float32, torch.device("cpu"), None)
    encoder = ImageEncoder(model, BOTH, torch.float32, torch.device("cpu"))
    good = ask(folder, ONE).images[0]
    encoded = encoder.encode(good)

    def refuse(**_: Any) -> Any:
        raise AssertionError("the encoder was called")

    monkeypatch.setattr(encoder._model, "get_image_features", refuse)
    with pytest.raises(UnfitImage) as caught:
        encoder.encode(fault(ask(folder, ONE)).images[0])
    assert words in str(caught.value)
    monkeypatch.undo()
    assert torch.equal(encoder.encode(good).embeddings, encoded.embeddings)
