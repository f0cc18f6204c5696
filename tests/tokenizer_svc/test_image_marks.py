"""Marks that prompts have around and within images."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.errors import InvalidRequest
from quire.images import MARKS
from quire.sampling import SamplingParameters
from tests.support.media_requests import media_request, prepare
from tests.support.vision_models import make_vision_model, png_bytes, random_image
from tests.support.vision_models.prompts import medium_of
from tokenizer_svc.image_processor import ImageProcessor, read_config
from tokenizer_svc.media_rejection import MediaRejection

IMAGE = random_image(60, 40, 1)


@pytest.fixture(scope="module")
def minicpm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("minicpm"), "minicpmv4_6")


@pytest.fixture(scope="module")
def ovis(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("ovis"), "ovis2")


def test_images_are_numbered(minicpm: Path) -> None:
    """Each kind by itself, in the order of the prompt."""
    preparer, images = prepare(minicpm, [medium_of(IMAGE), medium_of(IMAGE)])
    text, ordered = preparer.insert("A<|image_pad|>B<|image_pad|>C", images)
    content = images[0].text
    assert text == f"A<image_id>0</image_id>{content}B<image_id>1</image_id>{content}C"
    assert ordered == images


def test_numbers_can_be_left_out(minicpm: Path) -> None:
    preparer, images = prepare(minicpm, [medium_of(IMAGE)], {"use_image_id": False})
    assert preparer.insert("<|image_pad|>", images)[0] == images[0].text
    assert ImageProcessor(minicpm).prepare(png_bytes(IMAGE), {"use_image_id": True}).number_marks


def test_what_the_encoder_has_to_know_cannot_be_changed(minicpm: Path) -> None:
    processor = ImageProcessor(minicpm)
    assert processor.prepare(png_bytes(IMAGE), {"downsample_mode": "16x"}).num_tokens == 12
    with pytest.raises(MediaRejection, match="downsample_mode is 16x in the model's files, and cannot be changed"):
        processor.prepare(png_bytes(IMAGE), {"downsample_mode": "4x"})


def test_small_images_are_enlarged_alike(tmp_path: Path) -> None:
    """MiniCPM-OCR could also look for small letters first, with a package that Quire does not use."""
    processor = ImageProcessor(make_vision_model(tmp_path, "minicpm_ocr"))
    always = processor.prepare(png_bytes(IMAGE), {"small_image_upsize": "always"})
    assert always.num_tokens == processor.prepare(png_bytes(IMAGE), {}).num_tokens
    with pytest.raises(MediaRejection, match="small_image_upsize is 'adaptive'; set it to 'always'"):
        processor.prepare(png_bytes(IMAGE), {"small_image_upsize": "adaptive"})


def test_marks_that_have_embeddings_are_places_of_the_image(ovis: Path) -> None:
    request = media_request(
        ovis, [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}], [medium_of(IMAGE)],
        SamplingParameters(),
    )  # fmt: skip
    (image,) = request.images
    processor = ImageProcessor(ovis)
    start, *_, end = processor.mark_ids
    assert (request.prompt_token_ids[image.offset], request.prompt_token_ids[image.end - 1]) == (start, end)
    (given,) = (each for each in image.inputs if each.name == MARKS)
    assert given.shape == (image.num_tokens,) == (26,)


def test_a_text_with_such_a_mark_is_refused(ovis: Path) -> None:
    preparer, images = prepare(ovis, [medium_of(IMAGE)])
    tokens = ImageProcessor(ovis)._processor.tokenizer.encode(images[0].text + "<IMG_COL>", add_special_tokens=False)
    with pytest.raises(InvalidRequest, match=r"has 27 tokens for images.* instead of 26.* Remove such tokens"):
        preparer.place(tokens, images)


def test_ids_that_the_configuration_leaves_out(tmp_path: Path) -> None:
    """Transformers does not write values that are its own; they are what Ovis 2 was published with."""
    (tmp_path / "config.json").write_text('{"model_type": "ovis2"}')
    found = read_config(tmp_path)
    assert found["image_token_id"] == 151665
    assert [*found["visual_indicator_token_ids"]] == [*range(151666, 151671)]
    (tmp_path / "config.json").write_text('{"model_type": "llava", "image_token_index": 7}')
    assert read_config(tmp_path) == {"model_type": "llava", "image_token_index": 7}
    (tmp_path / "config.json").write_text('{"model_type": "of_its_own_code"}')
    assert read_config(tmp_path) == {"model_type": "of_its_own_code"}
