"""What models that both see and hear read of audio is what Transformers makes of it, beside images and videos."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers

from quire.media import MediaKind
from tests.support.audio_files import RATE, audio_file, sine
from tests.support.folders import FolderOf, made_once
from tests.support.omni_models import FAMILIES, make_omni_model
from tokenizer_svc.audio_processor import load_audio_processor
from tokenizer_svc.child import Message
from tokenizer_svc.media_process import make
from tokenizer_svc.media_rejection import MediaRejection

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
