"""Images within a prompt: what identifies them, where they may stand, and how they are sent."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidRequest
from quire.images import (
    DTYPES,
    FEATURES,
    MAX_IMAGES,
    MAX_IMAGES_BYTES,
    PIXELS,
    VIDEO_PIXELS,
    Image,
    ImageInput,
    check_images,
    contents_of,
)
from quire.rpc.images import from_images, to_images
from quire.v1 import common_pb2

PIXEL_INPUT = ImageInput(PIXELS, "uint8", (1, 3, 2, 2), bytes(range(12)))
GRID_INPUT = ImageInput("image_grid_thw", "int64", (1, 3), bytes(24))
IMAGE = Image(4, 6, (PIXEL_INPUT, GRID_INPUT), (0.5, 0.25, 2.0), (-1.0, 0.0, 1.0))

_floats = st.lists(st.floats(width=32, allow_nan=False), max_size=3).map(tuple)
_shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@st.composite
def inputs(draw: st.DrawFn) -> ImageInput:
    """Well-formed inputs, of which two are often equal."""
    dtype, shape = draw(st.sampled_from(sorted(DTYPES))), draw(_shapes)
    size = int(np.prod(shape)) * DTYPES[dtype]
    return ImageInput(draw(st.sampled_from([PIXELS, "a"])), dtype, shape, bytes([draw(st.integers(0, 1))]) * size)


images = st.builds(
    Image, st.integers(0, 9), st.integers(1, 9), st.lists(inputs(), max_size=2).map(tuple),
    st.sampled_from([(), (1.0,), (0.5,)]), st.sampled_from([(), (1.0,)]),
)  # fmt: skip


def content(image: Image) -> Image:
    return replace(image, offset=0, num_tokens=0)


@given(images, images)
def test_digests_are_equal_for_equal_content_only(first: Image, second: Image) -> None:
    assert (first.digest == second.digest) == (content(first) == content(second))


def test_no_part_of_the_content_is_left_out() -> None:
    """Nor can what belongs to one part be taken for another."""
    pixels, grid = PIXEL_INPUT, GRID_INPUT
    others = [
        IMAGE,
        replace(IMAGE, inputs=(replace(pixels, name="pixels"), grid)),
        replace(IMAGE, inputs=(replace(pixels, dtype="bool"), grid)),
        replace(IMAGE, inputs=(replace(pixels, shape=(1, 3, 4, 1)), grid)),
        replace(IMAGE, inputs=(replace(pixels, shape=(1, 3, 1, 4)), grid)),
        replace(IMAGE, inputs=(replace(pixels, data=bytes(range(1, 13))), grid)),
        replace(IMAGE, inputs=(pixels, replace(grid, data=b"\1" + bytes(23)))),
        replace(IMAGE, inputs=(grid, pixels)),
        replace(IMAGE, inputs=(pixels,)),
        replace(IMAGE, inputs=(pixels, grid, grid)),
        replace(IMAGE, inputs=()),
        replace(IMAGE, pixel_scale=IMAGE.pixel_shift, pixel_shift=IMAGE.pixel_scale),
        replace(IMAGE, pixel_scale=(*IMAGE.pixel_scale, -1.0), pixel_shift=IMAGE.pixel_shift[1:]),
        replace(IMAGE, pixel_scale=(0.5, 0.25, 2.0000002)),
        replace(IMAGE, pixel_shift=()),
    ]
    assert all(one.digest != other.digest for one, other in combinations(others, 2))
    assert {len(each.digest) for each in others} == {32}


@given(images, st.integers(0, 9), st.integers(1, 9))
def test_the_place_does_not_matter(image: Image, offset: int, num_tokens: int) -> None:
    placed = image.at(offset, num_tokens)
    assert (placed.offset, placed.num_tokens, placed.end) == (offset, num_tokens, offset + num_tokens)
    assert content(placed) == content(image)
    assert placed.digest == image.digest == replace(image, offset=offset, num_tokens=num_tokens).digest
    assert contents_of([image, placed]) == ((image.offset, image.digest), (offset, image.digest))


def test_placing_does_not_read_the_pixels_again(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = IMAGE.digest

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("the digest is computed again")

    monkeypatch.setattr(hashlib, "sha256", refuse)
    assert IMAGE.at(9, 9).at(3, 3).digest == digest


@given(images)
def test_without_pixels_an_image_is_where_it_was(image: Image) -> None:
    kept = tuple(each for each in image.inputs if each.name != PIXELS)
    assert image.without_pixels() == replace(image, inputs=kept)


@pytest.mark.parametrize("name", [PIXELS, VIDEO_PIXELS, FEATURES])
def test_what_is_encoded_is_left_out(name: str) -> None:
    image = replace(IMAGE, inputs=(replace(PIXEL_INPUT, name=name), GRID_INPUT))
    assert image.without_pixels().inputs == (GRID_INPUT,)


@given(st.lists(images, max_size=3), _floats, _floats)
def test_the_wire_changes_nothing(
    given_images: list[Image], scale: tuple[float, ...], shift: tuple[float, ...]
) -> None:
    sent = tuple(replace(image, pixel_scale=scale, pixel_shift=shift) for image in given_images)
    messages = [common_pb2.Image.FromString(each.SerializeToString()) for each in from_images(sent)]
    received = to_images(messages)
    assert received == sent
    assert [each.digest for each in received] == [each.digest for each in sent]


def checked(*given_images: Image, num_prompt_tokens: int = 20) -> str:
    """The message of the refusal; empty if there is none."""
    try:
        check_images(given_images, num_prompt_tokens)
    except InvalidRequest as error:
        return f"{error.parameter}: {error}"
    return ""


def test_where_images_may_stand() -> None:
    assert checked() == checked(IMAGE) == checked(IMAGE.at(0, 20)) == ""
    assert checked(IMAGE.at(0, 1), IMAGE.at(1, 1), IMAGE.at(19, 1)) == ""
    assert checked(IMAGE.at(4, 0)).startswith("images: ")
    assert "is empty" in checked(IMAGE.at(4, 0))
    assert "outside the prompt's 20 tokens" in checked(IMAGE.at(0, 21))
    assert "21 tokens at 0" in checked(IMAGE.at(0, 21))
    assert "1 tokens at 20" in checked(IMAGE.at(20, 1))
    assert "2 tokens at 5" in checked(IMAGE.at(4, 2), IMAGE.at(5, 2))
    assert "2 tokens at 4" in checked(IMAGE.at(6, 2), IMAGE.at(4, 2))  # in another order
    assert "4294967295 tokens" in checked(IMAGE.at(4294967295, 4294967295))


def test_how_many_and_how_large_images_may_be() -> None:
    many = [IMAGE.at(place, 1) for place in range(MAX_IMAGES + 1)]
    assert checked(*many[:-1], num_prompt_tokens=len(many)) == ""
    assert f"{MAX_IMAGES + 1} images; at most {MAX_IMAGES}" in checked(*many, num_prompt_tokens=len(many))
    half = ImageInput(PIXELS, "uint8", (MAX_IMAGES_BYTES // 2,), bytes(MAX_IMAGES_BYTES // 2))
    large = Image(0, 1, (half,))
    assert large.num_bytes == MAX_IMAGES_BYTES // 2
    assert checked(large, large.at(1, 1)) == ""
    assert f"at most {MAX_IMAGES_BYTES}" in checked(large, large.at(1, 1), IMAGE)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_inputs_have_as_many_bytes_as_their_shapes_say(dtype: str) -> None:
    size = {"uint8": 1, "bool": 1, "int64": 8, "float32": 4}[dtype]
    assert np.dtype(dtype).itemsize == size
    fits = ImageInput("a", dtype, (2, 3), bytes(6 * size))
    assert checked(Image(0, 1, (fits,))) == ""
    for wrong in (
        replace(fits, data=bytes(6 * size - 1)), replace(fits, data=b""), replace(fits, shape=(2, 4)),
        replace(fits, shape=()), replace(fits, dtype="float64"), replace(fits, dtype=""), replace(fits, dtype="object"),
    ):  # fmt: skip
        assert "do not match the type" in checked(Image(0, 1, (fits, wrong)))


def test_refusals_repeat_little_of_what_was_sent() -> None:
    long = ImageInput("n" * 10**6, "d" * 10**6, (1,) * 10**6, b"")
    assert len(checked(Image(0, 1, (long,)))) < 500
    assert "do not match" in checked(Image(0, 1, (ImageInput("a", "bool", (1,) * 9, b"1"),)))
    assert checked(Image(0, 1, (ImageInput("a", "bool", (1,) * 8, b"1"),))) == ""
