"""What models that both see and hear read of audio, and of videos with it, is what Transformers makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers

from quire.media import MediaKind
from tests.support.audio_files import RATE, audio_file, sine
from tests.support.films import film
from tests.support.folders import FolderOf, made_once
from tests.support.omni_models import FAMILIES, make_omni_model
from tests.support.vision_models import random_frames
from tokenizer_svc.audio_processor import load_audio_processor
from tokenizer_svc.child import Answer, Message
from tokenizer_svc.media import Medium, PreparedMedium, message_of, prepared_medium
from tokenizer_svc.media_process import make
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.processor_loading import load_processor

# The last ones are as long as the tiny models take, or nearly.
LENGTHS = (321, 480, 1_601, 15_999, 16_000, 16_160, 33_000, 95_900, 96_000)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    return made_once(tmp_path_factory, make_omni_model)


def num_tokens(family: str, num_frames: int) -> int:
    """By the encoders' convolutions and pooling, written out."""
    if family == "qwen2_5_omni":
        return ((num_frames - 1) // 2 + 1 - 2) // 2 + 1
    rest = num_frames % 100
    for _ in range(3):
        rest = (rest - 1) // 2 + 1
    return num_frames // 100 * 13 + rest


@pytest.mark.parametrize("family", FAMILIES)
def test_audio(folder_of: FolderOf, family: str) -> None:
    folder = folder_of(family)
    own, extractor = load_audio_processor(folder), transformers.WhisperFeatureExtractor.from_pretrained(folder)
    assert own is not None
    for length in LENGTHS:
        samples = sine(length / RATE + 0.001, seed=length)[:length]
        found = own.prepare(audio_file(samples, "wavf"), {})
        wanted = extractor(
            samples, sampling_rate=RATE, return_attention_mask=True, return_tensors="np", truncation=False,
            padding="max_length" if family == "qwen2_5_omni" else True,
        )  # fmt: skip
        mask = found.inputs["feature_attention_mask"]
        num_frames = int(wanted["attention_mask"].sum())
        assert mask.sum() == num_frames
        features = found.inputs["input_features"][:, :, :num_frames]
        assert np.abs(features - wanted["input_features"][:, :, :num_frames]).max() < 1e-4
        assert found.num_tokens == num_tokens(family, num_frames) == found.text.count(own.placeholder)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_kinds_have_their_tokens(folder_of: FolderOf, family: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder_of(family))
    marks = make(Message({"folder": str(folder_of(family))}))(Message()).fields["marks"]
    tokens = {kind: FAMILIES[family].tokens[f"{kind}_token"] for kind in MediaKind}
    assert {kind: mark[0] for kind, mark in marks.items()} == tokens
    assert {kind: mark[2] for kind, mark in marks.items()} == {
        kind: tokenizer.convert_tokens_to_ids(token) for kind, token in tokens.items()
    }
    before, after = (FAMILIES[family].tokens[f"audio_{end}_token"] for end in ("bos", "eos"))
    assert marks["audio"][1] == before + tokens[MediaKind.AUDIO] + after


@pytest.mark.parametrize(("family", "most"), [("qwen2_5_omni", 300), ("qwen3_omni", 900)])
def test_the_longest_audio(folder_of: FolderOf, tmp_path: Path, family: str, most: int) -> None:
    own = load_audio_processor(folder_of(family))
    assert own is not None
    with pytest.raises(MediaRejection, match=f"longer than {most} s"):
        own.prepare(audio_file(np.tile(sine(1.0, rate=4000), most + 1), "flac", 4000), {})


FRAMES, SOUND = random_frames(30, 40, 20, 1), sine(4.3)
HEARD = {"use_audio_in_video": True}


def video(answer: Answer, file: bytes, settings: Mapping[str, Any] = HEARD) -> PreparedMedium:
    found = answer(message_of(Medium(MediaKind.VIDEO, (file,)), settings, {}))
    assert not found.fields.get("error"), found.fields["error"]
    return prepared_medium(MediaKind.VIDEO, found)


@pytest.mark.parametrize("family", FAMILIES)
def test_order_of_a_video_and_its_sound(folder_of: FolderOf, family: str) -> None:
    """Also where frames are so far apart that some chunks have none, or one of them ends long before the other."""
    theirs, own = load_processor(folder_of(family)), load_audio_processor(folder_of(family))
    assert own is not None
    assert own.order is not None
    theirs.video_processor = SimpleNamespace(merge_size=2)
    random = np.random.default_rng(0)
    for seconds in (0.3, 0.5, 1.0, 2.0, 4.0, 5.5):
        for _ in range(4):
            (frames, rows, columns), num_sound = random.integers(1, 9, 3).tolist(), int(random.integers(1, 300))
            wanted = theirs.replace_video_with_audio_token(
                {"video_grid_thw": np.array([[frames, 2 * rows, 2 * columns]]), "video_second_per_grid": [seconds]}, 0,
                {"num_audio_tokens": [num_sound]}, 0, seconds_per_chunk=theirs.seconds_per_chunk,
                position_id_per_seconds=theirs.position_id_per_seconds,
            )  # fmt: skip
            found = own.order.is_sound(np.repeat(np.arange(frames) * seconds, rows * columns), num_sound)
            tokens = "".join(theirs.audio_token if each else theirs.video_token for each in found)
            assert theirs.audio_bos_token + tokens + theirs.audio_eos_token == wanted


@pytest.mark.parametrize("container", ["matroska", "avi"])
def test_a_video_and_its_sound(folder_of: FolderOf, container: str) -> None:
    answer = make(Message({"folder": str(folder_of("qwen3_omni"))}))
    file = film(FRAMES, container=container, fps=5, sound=SOUND)
    found, silent = video(answer, file), video(answer, file, {})
    audio = prepared_medium(
        MediaKind.AUDIO, answer(message_of(Medium(MediaKind.AUDIO, (audio_file(SOUND, "wavf"),)), {}, {}))
    )
    *inputs, is_sound = found.image.inputs
    assert inputs == [*silent.image.inputs, *audio.image.inputs]
    assert (is_sound.name, is_sound.dtype, is_sound.shape) == ("is_sound", "bool", (found.num_tokens,))
    assert sum(is_sound.data) == audio.num_tokens == found.num_tokens - silent.num_tokens
    assert not found.image.is_audio
    # Two frames, those of a second, stand before the sound of each second.
    pair = bytes(silent.num_tokens // 4)
    assert is_sound.data == (pair + b"\1" * 13) * 4 + b"\1" * (audio.num_tokens - 52)


def test_what_has_no_sound(folder_of: FolderOf) -> None:
    answer = make(Message({"folder": str(folder_of("qwen2_5_omni"))}))
    for file in (film(FRAMES), film(FRAMES, sound=SOUND[:300], container="matroska")):
        assert video(answer, file) == video(answer, file, {"use_audio_in_video": False}) == video(answer, file, {})


@pytest.mark.parametrize(
    ("settings", "rate", "words"),
    [
        ({"use_audio_in_video": "yes"}, 0.0, "use_audio_in_video in mm_processor_kwargs must be true or false"),
        (HEARD, 0.5, "use_audio_in_video is not for servers with --video-pruning-rate"),
    ],
)
def test_sound_that_cannot_be_had(folder_of: FolderOf, settings: dict[str, Any], rate: float, words: str) -> None:
    answer = make(Message({"folder": str(folder_of("qwen2_5_omni")), "video_pruning_rate": rate}))
    file = film(FRAMES, sound=SOUND, container="matroska")
    refused = answer(message_of(Medium(MediaKind.VIDEO, (file,)), settings, {})).fields
    assert words in refused["error"]
    assert refused["parameter"] == "mm_processor_kwargs"
