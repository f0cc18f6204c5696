"""Videos prepared for a model are what Transformers' own processor makes of their frames."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from quire.images import PLACES, VIDEO_PIXELS
from tests.support.folders import FolderOf, made_once
from tests.support.vision_models import (
    FAMILIES,
    make_vision_model,
    png_bytes,
    random_frames,
    reference_processor,
)
from tests.support.vision_models.placed_patches import check_placed_patches
from tokenizer_svc import video_processor
from tokenizer_svc.image_processor import ImageProcessor
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.processed import Processed
from tokenizer_svc.video import Video, VideoFacts
from tokenizer_svc.video_settings import DEFAULTS, read_settings

READERS = sorted(name for name, family in FAMILIES.items() if family.video_processor)
FRAMES = random_frames(84, 60, 5, 1)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    return made_once(tmp_path_factory, make_vision_model)


def prepared(
    folder: Path, frames: Sequence[Image.Image], settings: Mapping[str, Any] = {}, reading: Mapping[str, Any] = {}
) -> Processed:
    videos = ImageProcessor(folder).videos
    assert videos is not None
    return videos.prepare([png_bytes(frame) for frame in frames], settings, reading)


def by_transformers(folder: Path, frames: Sequence[Image.Image], facts: Mapping[str, Any]) -> tuple[str, Any]:
    """The text in place of the placeholder, and the inputs."""
    reference = reference_processor(folder, with_videos=True)
    inputs = reference(
        text=[reference.video_token], videos=[torch.from_numpy(np.stack([np.asarray(frame) for frame in frames]))],
        video_metadata=[dict(facts)], do_sample_frames=False, add_special_tokens=False, return_tensors="pt",
    )  # fmt: skip
    return reference.tokenizer.decode(inputs["input_ids"][0]), inputs


def check(found: Processed, text: str, inputs: Any) -> None:
    assert found.text == text
    if PLACES in found.inputs:
        check_placed_patches(found, inputs[VIDEO_PIXELS].numpy(), inputs["video_position_ids"].numpy())
        return
    (pixels,) = (values for name, values in found.inputs.items() if name.startswith("pixel_values"))
    wanted = next(values.numpy() for name, values in inputs.items() if name.startswith("pixel_values"))
    scale, shift = np.array(found.pixel_scale), np.array(found.pixel_shift)
    if pixels.ndim == 2:
        own = (pixels.reshape(len(pixels), 3, -1) * scale[:, None] + shift[:, None]).reshape(pixels.shape)
    else:
        own = (pixels * scale[:, None, None] + shift[:, None, None]).reshape(wanted.shape)
    assert np.allclose(own, wanted, rtol=1e-5, atol=1e-5)
    if "video_grid_thw" in inputs:
        assert found.inputs["image_grid_thw"].tolist() == inputs["video_grid_thw"].tolist()
    seconds = inputs.get("second_per_grid_ts")
    assert found.inputs.get("second_per_grid_ts", np.zeros(0)).tolist() == pytest.approx(
        [] if seconds is None else seconds.tolist()
    )


@pytest.mark.parametrize("family", READERS)
@pytest.mark.parametrize("count", [2, 5])
def test_families(folder_of: FolderOf, family: str, count: int) -> None:
    facts = {"total_num_frames": count, "fps": 1.0, "duration": float(count), "frames_indices": [*range(count)]}
    folder, frames = folder_of(family), FRAMES[:count]
    found = prepared(folder, frames)
    check(found, *by_transformers(folder, frames, facts))
    config = json.loads((folder / "config.json").read_text())
    names = ("image_token_id",) if family.startswith(("internvl", "glm")) else ("video_token_id", "video_token_index")
    videos = ImageProcessor(folder).videos
    assert videos is not None
    assert videos.token_id in [config.get(name) for name in names]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_times_of_chosen_frames(folder_of: FolderOf, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a film, not of a list of images."""
    folder, film = folder_of(family), random_frames(84, 60, 20, 2)

    class Film(Video):
        facts = VideoFacts(20, 12.5, 84, 60)

        def _distinct(self, indices: Sequence[int]) -> Any:
            return (film[index] for index in indices)

    monkeypatch.setattr(video_processor, "open_video", lambda files: Film())
    found = prepared(folder, [], reading={"num_frames": 4})
    indices = [0, 6, 12, 19]
    facts = {"total_num_frames": 20, "fps": 12.5, "duration": 1.6, "frames_indices": [*indices]}
    check(found, *by_transformers(folder, [film[index] for index in indices], facts))


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_a_single_frame_is_one_that_stands_still(folder_of: FolderOf, family: str) -> None:
    (still,) = (prepared(folder_of(family), FRAMES[:1]),)
    moving = prepared(folder_of(family), [FRAMES[0], FRAMES[0]])
    assert still.inputs["image_grid_thw"].tolist()[0][0] == 1
    assert np.array_equal(still.inputs["pixel_values"], moving.inputs["pixel_values"])
    assert still.num_tokens == moving.num_tokens


def test_settings_of_requests(folder_of: FolderOf) -> None:
    folder = folder_of("qwen2_5_vl")
    usual = prepared(folder, FRAMES)
    small = prepared(folder, FRAMES, {"size": {"shortest_edge": 784, "longest_edge": 1568}})
    assert small.num_tokens < usual.num_tokens
    assert prepared(folder, FRAMES, {"max_pixels": 1568}).num_tokens == small.num_tokens
    plain = prepared(folder, FRAMES, {"do_normalize": False, "do_rescale": False})
    assert (plain.pixel_scale, plain.pixel_shift) == ((1.0,) * 3, (0.0,) * 3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"patch_size": 2}, "'patch_size' is no setting for videos; these are: do_normalize"),
        ({"num_crops": 4}, "'num_crops' is no setting for videos"),
        ({"size": {"longest_edge": "many"}}, "with mm_processor_kwargs: "),
        ({"size": 3}, "with mm_processor_kwargs: "),
        ({"size": {"longest_edge": -1, "shortest_edge": -1}}, "with mm_processor_kwargs: "),
        ({"image_std": 0}, "image_std not 0"),
        ({"image_mean": [0, 1]}, "with mm_processor_kwargs: "),
        ({"resample": 77}, "with mm_processor_kwargs: "),
    ],
)
def test_settings_that_do_not_suit(folder_of: FolderOf, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(MediaRejection, match="does not accept the video") as caught:
        prepared(folder_of("qwen2_5_vl"), FRAMES, settings)
    assert words in str(caught.value)
    assert caught.value.parameter == "mm_processor_kwargs"


def test_frames_that_are_too_narrow(folder_of: FolderOf) -> None:
    with pytest.raises(MediaRejection, match="one side is 201 times as long as the other") as caught:
        prepared(folder_of("qwen2_5_vl"), random_frames(201, 1, 2, 1))
    assert caught.value.parameter == ""


def test_what_a_message_has_room_for(folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sizes follow from areas, frames become smaller; else they are too many."""
    monkeypatch.setattr(video_processor, "_MAX_BYTES", 40_000)
    for family in ("qwen2_5_vl", "qwen3_vl"):
        found = prepared(folder_of(family), FRAMES, {"size": {"shortest_edge": 784, "longest_edge": 10**9}})
        assert 20_000 < found.inputs["pixel_values"].nbytes <= 40_000
    for family in ("internvl", "llava_onevision"):
        assert prepared(folder_of(family), FRAMES).num_tokens
        monkeypatch.setattr(video_processor, "_MAX_BYTES", 10_000)
        with pytest.raises(MediaRejection, match=r"5 frames of a video take 11760 bytes .*at most 10000") as caught:
            prepared(folder_of(family), FRAMES)
        assert caught.value.parameter == "media_io_kwargs"
        monkeypatch.setattr(video_processor, "_MAX_BYTES", 40_000)


def test_where_settings_come_from(tmp_path: Path, folder_of: FolderOf) -> None:
    """From the processor's own file, or the one for videos, or the one for images; else Transformers' defaults."""
    name = "Qwen2_5_VLProcessor"
    assert read_settings(tmp_path, name) == DEFAULTS[name]
    sizes = {"preprocessor_config.json": 10, "video_preprocessor_config.json": 20, "processor_config.json": 30}
    for file, most in sizes.items():
        fields: dict[str, Any] = {"max_pixels": most, "patch_size": 7, "unknown": 1}
        written = {"video_processor": fields} if file == "processor_config.json" else fields
        (tmp_path / file).write_text(json.dumps(written))
        found = read_settings(tmp_path, name)
        assert (found.size["longest_edge"], found.patch_size) == (most, 7)
        assert found.size["shortest_edge"] == DEFAULTS[name].size["shortest_edge"]
    (tmp_path / "processor_config.json").write_text("{}")
    assert read_settings(tmp_path, name).size["longest_edge"] == 20


def test_models_that_read_images_only(folder_of: FolderOf, tmp_path: Path) -> None:
    assert ImageProcessor(folder_of("llava")).videos is None
    shutil.copytree(folder_of("qwen2_vl"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").unlink()  # as if the tokenizer were kept apart from the model
    videos, known = ImageProcessor(tmp_path).videos, ImageProcessor(folder_of("qwen2_vl")).videos
    assert videos is not None
    assert known is not None
    assert videos.token_id == known.token_id
