"""Images prepared for a model are what Transformers' own processor makes of them, whatever file they come in."""

from __future__ import annotations

import io
import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import transformers
from PIL import Image

from quire.images import LOCAL_PIXELS, MARKS, PIXELS, PLACES, TILE_SHAPES
from tests.support.vision_models import (
    FAMILIES,
    make_vision_model,
    png_bytes,
    random_image,
    reference_processor,
)
from tests.support.vision_models.placed_patches import check_placed_patches
from tests.support.vision_models.shaped_tiles import check_shaped_tiles
from tokenizer_svc import image_processor
from tokenizer_svc.image_processor import ImageProcessor
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.processed import Processed

IMAGE = random_image(60, 40, 1)
SIZES = ((60, 40), (30, 70), (100, 20), (28, 28))
# With these, LLaVA's processor keeps an image as it is.
AS_IT_IS = {"do_resize": False, "do_center_crop": False}
RED, BLUE = (255, 0, 0), (0, 0, 255)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("llava"), "llava")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("qwen"), "qwen2_5_vl")


@pytest.fixture(scope="module")
def processor(llava: Path) -> ImageProcessor:
    return ImageProcessor(llava)


def check(folder: Path, image: Image.Image, settings: dict[str, Any]) -> Processed:
    """Compares an image with the one of Transformers' processor."""
    own, reference = ImageProcessor(folder), reference_processor(folder)
    prepared = own.prepare(png_bytes(image), settings)
    reference._has_wrappers = lambda *_: True  # HunYuan's asks for tokens around a placeholder, as templates write them
    expected = reference(
        text=[own.placeholder], images=[image], add_special_tokens=False, return_tensors="pt", **settings
    )
    if "pixel_values_images" in expected:  # which Transformers calls deprecated
        expected[PIXELS] = expected.pop("pixel_values_images")
    ids = expected.pop("input_ids")[0].tolist()
    text = "0".join(prepared.number_marks) + prepared.text
    assert reference.tokenizer.encode(text, add_special_tokens=False) == ids
    assert reference.tokenizer.decode(ids) == text
    tokens = [token for token in ids if token in (own.image_token_id, *own.mark_ids)]
    assert prepared.num_tokens == len(tokens) > 0
    if own.mark_ids:
        assert [own.mark_ids[mark] if mark >= 0 else own.image_token_id for mark in prepared.inputs[MARKS]] == tokens
    for name in ("attention_mask", "mm_token_type_ids", "token_type_ids"):
        expected.pop(name, None)
    if TILE_SHAPES in expected:
        check_shaped_tiles(prepared, expected)
        return prepared
    assert set(prepared.inputs) - {"num_patches", MARKS} == set(expected)  # for the text only
    if PLACES in expected:
        check_placed_patches(prepared, expected[PIXELS].numpy(), expected[PLACES].numpy())
        return prepared
    for name, values in expected.items():
        found, wanted = prepared.inputs[name], np.asarray(values)
        if name in (PIXELS, LOCAL_PIXELS):
            assert found.dtype == np.uint8
            pixels = normalized(prepared, wanted.shape, name)
            assert pixels.shape == wanted.shape
            assert np.allclose(pixels, wanted, rtol=1e-6, atol=1e-6)
        else:
            assert np.array_equal(found, wanted), name
    return prepared


def normalized(prepared: Processed, wanted: tuple[int, ...], name: str = PIXELS) -> npt.NDArray[np.float32]:
    """The pixels as the engine has to normalize them."""
    pixels: npt.NDArray[np.float32] = prepared.inputs[name].astype(np.float32)
    scale, shift = np.array(prepared.pixel_scale, np.float32), np.array(prepared.pixel_shift, np.float32)
    if pixels.ndim == 2:  # Qwen's patches: channels, then frames, rows and columns; one frame stands for all
        apart = pixels.reshape(len(pixels), 3, 1, -1) * scale[:, None, None] + shift[:, None, None]
        return apart.repeat(wanted[1] // pixels.shape[1], axis=2).reshape(len(pixels), -1)
    return pixels * scale[:, None, None] + shift[:, None, None]


def test_a_tokenizer_in_older_files(qwen: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(qwen, tmp_path / "older")
    definition = json.loads((folder / "tokenizer.json").read_bytes())
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(definition["model"]["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "added_tokens.json").write_text(
        json.dumps({token["content"]: token["id"] for token in definition["added_tokens"]})
    )
    found, expected = (ImageProcessor(place).prepare(png_bytes(IMAGE), {}) for place in (folder, qwen))
    assert (found.text, found.num_tokens) == (expected.text, expected.num_tokens)
    assert ImageProcessor(folder).image_token_id == ImageProcessor(qwen).image_token_id


@pytest.mark.parametrize("family", FAMILIES)
def test_an_image_is_as_transformers_prepares_it(family: str, tmp_path: Path) -> None:
    folder = make_vision_model(tmp_path, family)
    for number, size in enumerate(SIZES):
        check(folder, random_image(*size, number), {})


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}},
        {"do_normalize": False},
        {"do_rescale": False},
        {"rescale_factor": 1 / 128, "image_mean": [0.0, 0.25, 0.5], "image_std": [1.0, 0.5, 0.25]},
    ],
    ids=lambda settings: " ".join(settings),
)
def test_settings_do_what_they_do_in_transformers(llava: Path, settings: dict[str, Any]) -> None:
    prepared = check(llava, IMAGE, settings)
    assert prepared.num_tokens == (64 if "size" in settings else 16)


def test_settings_of_the_number_of_tokens(qwen: Path) -> None:
    assert check(qwen, IMAGE, {}).num_tokens == 12
    assert check(qwen, IMAGE, {"size": {"shortest_edge": 784, "longest_edge": 784}}).num_tokens == 2
    with pytest.warns(FutureWarning, match="max_pixels"):
        few = ImageProcessor(qwen).prepare(png_bytes(IMAGE), {"max_pixels": 784})
    assert few.num_tokens == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"nonsense": 1},
        {"size": "huge"},
        {"size": {"shortest_edge": 0}},
        {"do_resize": "x"},
        {"resample": 99},
        {"image_mean": "x"},
        {"image_mean": None},
        {"image_mean": [0.5, 0.5]},
        {"image_std": [0.0, 0.0, 0.0]},
        {"rescale_factor": 1e39},
        {"rescale_factor": "x"},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_at_fault(processor: ImageProcessor, settings: dict[str, Any]) -> None:
    with pytest.raises(MediaRejection, match="with mm_processor_kwargs: ") as caught:
        processor.prepare(png_bytes(IMAGE), settings)
    assert caught.value.parameter == "mm_processor_kwargs"


def test_settings_that_divide_by_nothing_are_at_fault(qwen: Path) -> None:
    with pytest.raises(MediaRejection, match=r"with mm_processor_kwargs: .*zero"):
        ImageProcessor(qwen).prepare(png_bytes(IMAGE), {"patch_size": 0})


def test_an_image_that_does_not_suit_the_processor_is_at_fault_without_settings(qwen: Path) -> None:
    with pytest.raises(MediaRejection, match=r"accept the image: .*aspect ratio") as caught:
        ImageProcessor(qwen).prepare(png_bytes(Image.new("RGB", (1000, 2))), {})
    assert caught.value.parameter == ""


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The image as a file of a kind."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png_file(
    width: int, height: int, rows: bytes = b"", *, depth: int = 8, color_type: int = 2, transparent: bytes = b""
) -> bytes:
    """A PNG file made by hand; each row begins with the number of its filter, 0 for none."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack("!IIBBBBB", width, height, depth, color_type, 0, 0, 0))
    colors = chunk(b"tRNS", transparent) if transparent else b""
    return b"\x89PNG\r\n\x1a\n" + head + colors + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def decoded(processor: ImageProcessor, file: bytes) -> npt.NDArray[np.uint8]:
    """What the model sees of a file, as rows of pixels."""
    (pixels,) = processor.prepare(file, AS_IT_IS).inputs["pixel_values"]
    return pixels.transpose(1, 2, 0)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "WEBP", "JPEG"])
def test_kinds_of_files(processor: ImageProcessor, kind: str) -> None:
    file = saved(IMAGE, kind, **({"lossless": True} if kind == "WEBP" else {}))
    found, original = decoded(processor, file), np.asarray(IMAGE)
    assert found.shape == original.shape
    if kind in ("GIF", "JPEG"):  # the file itself has lost something
        assert np.abs(found.astype(int) - original).mean() < 25
    else:
        assert np.array_equal(found, original)


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA", "CMYK"])
def test_kinds_of_colors(processor: ImageProcessor, mode: str) -> None:
    kept = IMAGE.convert(mode)
    file = saved(kept, "JPEG", quality=100, subsampling=0) if mode == "CMYK" else saved(kept, "PNG")
    expected = np.asarray(kept.convert("RGB")).astype(int)
    assert np.abs(decoded(processor, file) - expected).max() <= (8 if mode == "CMYK" else 0)


@pytest.mark.parametrize(
    ("orientation", "place"), [(1, (0, 0)), (2, (0, -1)), (3, (-1, -1)), (4, (-1, 0)), (6, (0, -1)), (8, (-1, 0))]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_photos_are_upright(processor: ImageProcessor, kind: str, orientation: int, place: tuple[int, int]) -> None:
    """A camera stores how it was held; 6 means that the first row is the right side."""
    photo, exif = Image.new("RGB", (32, 16), BLUE), Image.Exif()
    photo.paste(RED, (0, 0, 8, 8))  # the corner at the top left
    exif[0x0112] = orientation
    found = decoded(processor, saved(photo, kind, exif=exif)).astype(int)
    assert found.shape[:2] == ((32, 16) if orientation > 4 else (16, 32))
    assert np.abs(found[place] - RED).max() < 20
    assert all(np.abs(found[corner] - BLUE).max() < 20 for corner in {(0, 0), (0, -1), (-1, 0), (-1, -1)} - {place})


def test_what_is_transparent_is_white(processor: ImageProcessor) -> None:
    glass = Image.new("RGBA", (4, 2), (*RED, 0))
    glass.putpixel((1, 0), (*RED, 255))
    glass.putpixel((2, 0), (*RED, 128))
    first, second = decoded(processor, saved(glass, "PNG"))
    assert first.tolist() == [[255, 255, 255], [255, 0, 0], [255, 127, 127], [255, 255, 255]]
    assert second.tolist() == [[255, 255, 255]] * 4
    for kind in ("GIF", "PNG"):
        palette = Image.new("P", (4, 2), 1)
        palette.putpalette([*RED, *BLUE])
        palette.putpixel((0, 0), 0)
        file = saved(palette, kind, transparency=1)
        assert decoded(processor, file)[0].tolist() == [[255, 0, 0], *[[255, 255, 255]] * 3]
    rows = b"".join(b"\0" + bytes([*RED, *BLUE]) for _ in range(2))
    marked = png_file(2, 2, rows, transparent=struct.pack("!3H", *BLUE))
    assert decoded(processor, marked)[0].tolist() == [[255, 0, 0], [255, 255, 255]]


def test_sixteen_bits_become_eight(processor: ImageProcessor) -> None:
    gray = np.linspace(0, 65535, 8 * 8).reshape(8, 8).astype(np.uint16)
    found = decoded(processor, saved(Image.fromarray(gray), "PNG"))
    assert np.array_equal(found, (gray >> 8)[:, :, None].repeat(3, 2))
    rows = b"".join(b"\0" + struct.pack("!6H", 65535, 32768, 0, 255, 256, 0) for _ in range(2))
    assert decoded(processor, png_file(2, 2, rows, depth=16))[0].tolist() == [[255, 128, 0], [0, 1, 0]]


def test_an_animation_is_its_first_frame(processor: ImageProcessor) -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in (RED, BLUE)]
    for kind, options in (("GIF", {}), ("WEBP", {"lossless": True})):
        file = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert decoded(processor, file)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("width", "height", "words"),
    [(8193, 8192, "8193 x 8192 pixels"), (60_000, 60_000, "too many pixels"), (2**31 - 1, 2**31 - 1, "too many")],
)
def test_too_many_pixels_are_refused_before_they_take_memory(
    processor: ImageProcessor, width: int, height: int, words: str
) -> None:
    with pytest.raises(MediaRejection, match=f"{words}.*at most 67108864"):
        processor.prepare(png_file(width, height), {})


PNG, JPEG = png_bytes(IMAGE), saved(IMAGE, "JPEG")
BROKEN = {
    "PNG cut in its data": PNG[: len(PNG) // 2], "PNG cut in its head": PNG[:20], "JPEG cut": JPEG[: len(JPEG) // 2],
    "PNG with changed bytes": PNG[:200] + bytes(50) + PNG[250:], "PNG without pixels": png_file(0, 5),
    "PNG without data": png_file(5, 5), "text": b"not an image", "zeros": bytes(1000),
    "TIFF": saved(IMAGE, "TIFF"), "PDF": saved(IMAGE, "PDF"), "EPS": saved(IMAGE, "EPS"), "ICO": saved(IMAGE, "ICO"),
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>',
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_whole_image_of_a_known_kind_is_refused(processor: ImageProcessor, name: str) -> None:
    with pytest.raises(MediaRejection, match=r"cannot be decoded .*PNG, JPEG, WEBP, GIF, BMP") as caught:
        processor.prepare(BROKEN[name], {"do_resize": False})
    assert caught.value.parameter == ""


def test_a_processor_that_only_prepares_whole_conversations_is_refused(
    llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_processor, "load_processor", lambda _: object.__new__(transformers.Idefics2Processor))
    with pytest.raises(ValueError, match="Idefics2Processor does not tell what takes the place of an image"):
        ImageProcessor(llava)
