"""Images and audio with --tokenizer-mode mistral: Mistral's own tokens, and what Transformers makes of files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from mistral_common.protocol.instruct.chunk import ImageChunk
from mistral_common.tokens.tokenizers import image as mistral_image
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from PIL import Image
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from quire.tokenizer.tekken import read_tekken
from tests.support.audio_files import RATE, audio_file, sine
from tests.support.tekken import AUDIO, IMAGES, LIVE_AUDIO, write_media_tekken
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.mistral_media import MistralAudio, MistralImages, MistralLiveAudio, load_mistral_media


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_media_tekken(tmp_path_factory.mktemp("mistral"), image=IMAGES).parent


@pytest.fixture(scope="module")
def images(folder: Path) -> MistralImages:
    found, audio = load_mistral_media(read_tekken(folder).media)
    assert found is not None
    assert audio is None
    return found


@pytest.fixture
def audio(tmp_path: Path) -> MistralAudio:
    none, found = load_mistral_media(read_tekken(write_media_tekken(tmp_path, audio=AUDIO).parent).media)
    assert found is not None
    assert none is None
    return found


def picture(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values)


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("size", [(56, 56), (20, 31), (14, 15), (1, 1), (90, 45), (57, 200)])
def test_images(folder: Path, images: MistralImages, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    found = images.prepare(png(picture(*size)), {})
    # Scaling needs OpenCV there, but the numbers of tokens do not.
    monkeypatch.setattr(mistral_image, "transform_image", lambda _, size: size)
    encoder: Any = MistralTokenizer.from_file(str(folder / "tekken.json")).instruct_tokenizer.image_encoder
    wanted = encoder(ImageChunk(image=picture(*size)))
    tokens = read_tekken(folder).tokenizer.encode(found.text, add_special_tokens=False).ids
    assert tokens == wanted.tokens
    assert found.num_tokens == tokens.count(images.image_token_id)
    assert found.inputs["image_sizes"].tolist() == [[*wanted.image[::-1]]]
    side = 14
    processor = PixtralImageProcessorPil(size={"longest_edge": 56}, patch_size={"height": side, "width": side})
    theirs = processor(picture(*size), return_tensors="np")
    if theirs["image_sizes"].tolist() == found.inputs["image_sizes"].tolist():  # which round otherwise
        pixels = found.inputs["pixel_values"][0].astype(np.float64)
        scale, shift = (np.array(each)[:, None, None] for each in (found.pixel_scale, found.pixel_shift))
        np.testing.assert_allclose(pixels * scale + shift, theirs["pixel_values"][0], atol=1e-5)
    else:
        assert size == (57, 200)


@pytest.mark.parametrize("seconds", [0.1, 1.99, 2.0, 5.3])
def test_audio(audio: MistralAudio, seconds: float) -> None:
    samples = sine(seconds)
    found = audio.prepare(audio_file(samples, "wavf"), {})
    extractor = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=2)
    theirs = extractor(
        samples, sampling_rate=RATE, return_tensors="np", padding=True, truncation=False, pad_to_multiple_of=2 * RATE
    )["input_features"][0]
    rows = -(-len(samples) // (2 * RATE))
    wanted = theirs.reshape(16, rows, 200).transpose(1, 0, 2)
    np.testing.assert_allclose(found.inputs["input_features"], wanted, atol=2e-4)
    assert found.inputs["input_features_mask"].all()
    assert (found.num_tokens, found.text) == (25 * rows, "[AUDIO]" * 25 * rows)


@pytest.mark.parametrize("seconds", [0.1, 0.8, 5.3])
def test_live_audio(tmp_path: Path, seconds: float) -> None:
    """There is as much silence around it, and as much of it in the prompt, as Mistral's own package has."""
    path = write_media_tekken(tmp_path, audio=LIVE_AUDIO)
    _, audio = load_mistral_media(read_tekken(tmp_path).media)
    assert isinstance(audio, MistralLiveAudio)
    samples = sine(seconds)
    found = audio.prepare(audio_file(samples, "wavf"), {})
    encoder: Any = MistralTokenizer.from_file(str(path)).instruct_tokenizer.audio_encoder
    extractor = transformers.VoxtralRealtimeFeatureExtractor(feature_size=16)
    theirs = extractor(encoder.pad(samples, RATE), sampling_rate=RATE, return_tensors="np")["input_features"]
    assert theirs.shape[-1] % 8 == 0
    np.testing.assert_allclose(found.inputs["input_features"], theirs, atol=2e-4)
    assert (found.inputs["input_features_mask"].shape, found.inputs["input_features_mask"].all()) == (
        (1, theirs.shape[-1]), True,
    )  # fmt: skip
    assert found.text == "[STREAMING_PAD]" * found.num_tokens
    assert read_tekken(tmp_path).tokenizer.encode(found.text, add_special_tokens=False).ids == (
        encoder.encode_streaming_tokens()
    )


@pytest.mark.parametrize("sizes", [(), (700, 9000, 300, 1280, 1), (20_000, 1319, 1, 1280), (30_000,)], ids=str)
def test_parts_of_live_audio_are_those_of_the_whole(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    write_media_tekken(tmp_path, audio=LIVE_AUDIO)
    _, audio = load_mistral_media(read_tekken(tmp_path).media)
    assert isinstance(audio, MistralLiveAudio)
    samples = (sine(1.9) * 32767).astype("<i2")
    whole = audio.prepare(audio_file(samples / np.float32(32768), "wavf"), {}).inputs["input_features"]
    rest, found, begins = samples[:0], [], True
    for part, ends in [*((part, False) for part in np.split(samples, np.cumsum(sizes))), (samples[:0], True)]:
        rest = np.concatenate([rest, part])
        inputs, count, num_used = audio.prepare_part(rest, begins=begins, ends=ends)
        if inputs:
            assert inputs["input_features"].shape == (1, 16, 8 * count) and inputs["input_features_mask"].all()
            assert not begins or count > 1 + audio.prepare(audio_file(sine(0.1), "wavf"), {}).num_tokens
            found.append(inputs["input_features"])
            begins = False
        else:
            assert (count, num_used) == (0, 0)
        rest = rest[num_used:]
    np.testing.assert_allclose(np.concatenate(found, axis=-1), whole, atol=1e-5)
    assert not len(rest)


def test_there_are_no_settings(images: MistralImages, audio: MistralAudio) -> None:
    with pytest.raises(MediaRejection, match="'size' in mm_processor_kwargs is no setting") as caught:
        images.prepare(png(picture(9, 9)), {"size": 3})
    assert caught.value.parameter == "mm_processor_kwargs"
    with pytest.raises(MediaRejection, match="'a' in mm_processor_kwargs"):
        audio.prepare(audio_file(sine(1.0), "wavf"), {"a": 1})


def test_where_settings_are(tmp_path: Path) -> None:
    assert read_tekken(write_media_tekken(tmp_path).parent).media == {}
    (settings,) = read_tekken(write_media_tekken(tmp_path, multimodal=IMAGES).parent).media.items()
    assert settings == ("image", IMAGES | {"token_id": 10})
    assert read_tekken(write_media_tekken(tmp_path, audio=AUDIO).parent).media["audio"]["token_id"] == 24
