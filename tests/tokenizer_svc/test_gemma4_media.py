"""What Gemma 4 reads of images, videos and audio, and which of its models hear."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from quire.images import FEATURES, PIXELS, PLACES
from quire.media import MediaKind
from tests.support.audio_files import RATE, audio_file, sine
from tests.support.media_requests import prepare
from tests.support.vision_models import make_vision_model, png_bytes, random_frames, random_image
from tests.support.vision_models.placed_patches import check_placed_patches
from tests.support.vision_models.reference import reference_processor
from tests.support.vision_models.video_reference import video_processor_class
from tokenizer_svc import video_processor
from tokenizer_svc.audio_processor import AudioProcessor, load_audio_processor
from tokenizer_svc.audio_settings import DEFAULTS
from tokenizer_svc.child import Message
from tokenizer_svc.image_processor import ImageProcessor
from tokenizer_svc.media import Medium
from tokenizer_svc.media_process import make
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.video import Video, VideoFacts
from tokenizer_svc.video_settings import DEFAULTS as VIDEO_DEFAULTS

IMAGE = random_image(60, 40, 1)
# Around frames, tokens, and the 128 samples to whose multiples audio is filled up.
LENGTHS = (1, 160, 161, 320, 321, 480, 481, 641, 1_601, 2_048, 2_049, 15_999, 16_000, 33_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("gemma4"), "gemma4")


@pytest.fixture(scope="module")
def unified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model without an encoder."""
    return make_vision_model(tmp_path_factory.mktemp("gemma4"), "gemma4_unified")


def hearing(folder: Path) -> AudioProcessor:
    found = load_audio_processor(folder)
    assert found is not None
    return found


def facts_of(folder: Path) -> dict[str, Any]:
    marks: dict[str, Any] = make(Message({"folder": str(folder)}))(Message()).fields["marks"]
    return marks


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((60, 40), (10, 6)), ((400, 20), (37, 1)), ((20, 400), (1, 37)), ((1000, 700), (10, 7)), ((9, 9), (8, 8)),
        ((1000, 2), (70, 1)),
    ],
)  # fmt: skip
def test_an_image_has_as_many_tokens_as_fit(folder: Path, size: tuple[int, int], grid: tuple[int, int]) -> None:
    """Here up to 70, of 2 x 2 patches each, in about the image's proportions."""
    found = ImageProcessor(folder).prepare(png_bytes(random_image(*size, 2)), {})
    columns, rows = grid
    assert found.num_tokens == columns * rows
    assert found.text == "<|image>" + "<|image|>" * found.num_tokens + "<image|>"
    assert found.inputs[PIXELS].shape == (1, 4 * found.num_tokens, 3 * 4**2)
    assert found.inputs[PLACES][0, -1].tolist() == [2 * columns - 1, 2 * rows - 1]


def test_settings_of_images(folder: Path) -> None:
    own, reference = ImageProcessor(folder), reference_processor(folder)
    for settings in (
        {"max_soft_tokens": 140},
        {"do_normalize": True, "image_mean": [0.0, 0.25, 0.5], "image_std": [1.0, 0.5, 0.25]},
    ):
        found = own.prepare(png_bytes(IMAGE), settings)
        wanted = reference(text=[own.placeholder], images=[IMAGE], return_tensors="pt", **settings)
        check_placed_patches(found, wanted[PIXELS].numpy(), wanted[PLACES].numpy())
        assert (found.num_tokens > 70) == ("max_soft_tokens" in settings)
    with pytest.raises(MediaRejection, match=r"with mm_processor_kwargs: `max_soft_tokens` must be one of"):
        own.prepare(png_bytes(IMAGE), {"max_soft_tokens": 71})


def test_the_number_of_an_images_tokens_is_not_for_frames(folder: Path) -> None:
    videos = ImageProcessor(folder).videos
    assert videos is not None
    files = [png_bytes(frame) for frame in random_frames(60, 40, 3, 1)]
    usual, more = (videos.prepare(files, settings, {}) for settings in ({}, {"max_soft_tokens": 560}))
    assert more.text == usual.text
    with pytest.raises(MediaRejection, match="'pooling_kernel_size' is no setting for videos"):
        videos.prepare(files, {"pooling_kernel_size": 1}, {})


def test_times_beyond_a_minute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    film = random_frames(40, 30, 4, 2)

    class Film(Video):
        facts = VideoFacts(4000, 12.5, 40, 30)

        def _distinct(self, indices: Sequence[int]) -> Any:
            assert indices == [0, 1333, 2666, 3999]
            return iter(film)

    monkeypatch.setattr(video_processor, "open_video", lambda files: Film())
    videos = ImageProcessor(folder).videos
    assert videos is not None
    found = videos.prepare([], {}, {"num_frames": 4})
    each = "<|image>" + "<|video|>" * (found.num_tokens // 4) + "<image|>"
    assert found.text == f"00:00 {each} 01:46 {each} 03:33 {each} 05:19 {each}"


def test_audio(folder: Path) -> None:
    own, reference = hearing(folder), reference_processor(folder)
    for length in LENGTHS:
        samples = sine(length / RATE + 0.001, seed=length)[:length]
        found = own.prepare(audio_file(samples, "wavf"), {})
        wanted = reference(text=[own.placeholder], audio=[samples], sampling_rate=RATE, return_tensors="pt")
        assert found.text == reference.tokenizer.decode(wanted["input_ids"][0])
        assert found.num_tokens == found.text.count(own.placeholder)
        assert bool(found.num_tokens) == (length > 160)
        assert set(found.inputs) == {FEATURES, "input_features_mask"}
        assert np.array_equal(found.inputs[FEATURES], wanted[FEATURES].numpy())
        assert np.array_equal(found.inputs["input_features_mask"], wanted["input_features_mask"].numpy())


def test_samples_instead_of_features(unified: Path) -> None:
    own, reference = hearing(unified), reference_processor(unified)
    for length in (1, 319, 320, 321, 33_000):
        samples = sine(length / RATE + 0.001, seed=length)[:length]
        found = own.prepare(audio_file(samples, "wavf"), {})
        wanted = reference(text=[own.placeholder], audio=[samples], sampling_rate=RATE, return_tensors="pt")
        assert found.text == reference.tokenizer.decode(wanted["input_ids"][0])
        assert found.num_tokens == -(-length // 320)
        assert np.array_equal(found.inputs[FEATURES], wanted[FEATURES].numpy())
        assert np.array_equal(found.inputs["input_features_mask"], wanted["input_features_mask"].numpy())


def test_the_longest_audio(folder: Path) -> None:
    own = hearing(folder)
    longest = own.prepare(audio_file(np.zeros(30 * RATE, np.float32), "flac"), {})
    assert longest.num_tokens == 750  # as many as the processor of published models allows
    assert longest.inputs[FEATURES].shape == (1, 2999, 16)
    with pytest.raises(MediaRejection, match="longer than 30 s, the most that this model takes"):
        own.prepare(audio_file(np.zeros(31 * RATE, np.float32), "flac"), {})


def test_settings_are_for_what_the_model_sees(folder: Path) -> None:
    """An operator's settings of images do not stand in the way of audio."""
    media = [Medium(MediaKind.AUDIO, (audio_file(sine(0.5)),)), Medium(MediaKind.IMAGE, (png_bytes(IMAGE),))]
    _, (heard, seen) = prepare(folder, media, {"max_soft_tokens": 140})
    assert heard.num_tokens
    assert seen.num_tokens > 70


def test_all_kinds_have_their_tokens(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    assert facts_of(folder) == {
        kind: [f"<|{kind}|>", f"<|{kind}|>", config[f"{kind}_token_id"]] for kind in ("image", "video", "audio")
    }
    assert [tokenizer.convert_tokens_to_ids(f"<|{kind}|>") for kind in ("image", "video", "audio")] == [
        config[f"{kind}_token_id"] for kind in ("image", "video", "audio")
    ]


@pytest.mark.parametrize("fields", [{"audio_config": None}, {}], ids=["null", "left out"])
def test_models_that_do_not_hear(folder: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    """The larger ones; a tokenizer without its model may be that of any."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    del config["audio_config"]
    (tmp_path / "config.json").write_text(json.dumps(config | fields))
    assert load_audio_processor(tmp_path) is None
    assert set(facts_of(tmp_path)) == {"image", "video"}
    (tmp_path / "config.json").unlink()
    assert set(facts_of(tmp_path)) == {"image", "video", "audio"}


def test_defaults_are_those_of_transformers() -> None:
    samples = transformers.Gemma4UnifiedAudioFeatureExtractor().audio_samples_per_token
    assert DEFAULTS["Gemma4UnifiedProcessor"].audio_samples_per_token == samples
    extractor, videos = transformers.Gemma4AudioFeatureExtractor(), video_processor_class("Gemma4VideoProcessor")()
    own, own_videos = DEFAULTS["Gemma4Processor"], VIDEO_DEFAULTS["Gemma4Processor"]
    assert (own.feature_size, own.sampling_rate) == (extractor.feature_size, extractor.sampling_rate)
    for name in ("patch_size", "pooling_kernel_size", "max_soft_tokens", "resample", "do_rescale", "rescale_factor"):
        assert getattr(own_videos, name) == getattr(videos, name)
    assert (own_videos.image_mean, own_videos.image_std) == (tuple(videos.image_mean), tuple(videos.image_std))


@pytest.mark.slow
def test_a_process_does_without_torch(folder: Path) -> None:
    script = """
import sys
sys.modules["torch"] = None
import tokenizer_svc.media_process as media_process
from tokenizer_svc.child import Message
answer = media_process.make(Message({"folder": sys.argv[1]}))
file = sys.stdin.buffer.read()
found = answer(Message({"kind": sys.argv[2], "settings": {}, "reading": {}, "sizes": [len(file)]}, file))
assert found.fields["num_tokens"], found.fields
"""
    for kind, file in (("image", png_bytes(IMAGE)), ("video", png_bytes(IMAGE)), ("audio", audio_file(sine(0.5)))):
        subprocess.run([sys.executable, "-c", script, folder, kind], input=file, check=True)
