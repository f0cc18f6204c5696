"""A small tekken.json: the first words of Mistral's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mistral_common
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

NUM_SPECIAL = 30
NUM_WORDS = 2000


# Special tokens at the ids that they have in Mistral's own files.
SPECIAL = (
    *(token["token_str"] for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS),
    *(f"<SPECIAL_{number}>" for number in range(20, 24)), "[AUDIO]", "[BEGIN_AUDIO]", "[TRANSCRIBE]",
    "[STREAMING_PAD]", "[STREAMING_WORD]",
)  # fmt: skip
IMAGES = {"image_patch_size": 7, "max_image_size": 56, "spatial_merge_size": 2}
# Parts of two seconds, with 200 frames each, four of which are a row of the encoder's, and eight a token.
AUDIO = {
    "sampling_rate": 16_000, "frame_rate": 12.5, "chunk_length_s": 2.0,
    "audio_encoding_config": {"num_mel_bins": 16, "hop_length": 160, "window_size": 400},
}  # fmt: skip
# Audio whose text is two tokens, of 80 ms, behind it, with three of silence before it.
LIVE_AUDIO = {name: value for name, value in AUDIO.items() if name != "chunk_length_s"} | {
    "transcription_format": "streaming", "transcription_delay_ms": 160.0, "streaming_look_ahead_ms": 2.5,
    "streaming_look_back_ms": 52.5, "streaming_n_left_pad_tokens": 3,
}  # fmt: skip


def write_media_tekken(folder: Path, **media: Any) -> Path:
    """Writes a file of the version that knows images and audio, with settings of one of them."""
    tokens = [{"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(SPECIAL)]
    return write_tekken(folder, special_tokens=tokens, version="v7", **media)


def write_tekken_with_settings(folder: Path, efforts: Sequence[str], **media: Any) -> Path:
    """Writes a file of the version that knows how much to think: one of `efforts`, the first by default."""
    names = [*SPECIAL[:20], "[ARGS]", "[CALL_ID]", "[MODEL_SETTINGS]", "[/MODEL_SETTINGS]", *SPECIAL[24:]]
    tokens = [{"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(names)]
    effort = {"type": "enum", "values": efforts, "accepts_none": True, "default": efforts[0]}
    settings = {"reasoning_effort": effort}
    return write_tekken(folder, special_tokens=tokens, version="v15", model_settings_builder=settings, **media)


def write_tekken(folder: Path, version: str = "", **changes: Any) -> Path:
    """Writes the file, with changes to its top level."""
    packaged = json.loads((Path(mistral_common.__file__).parent / "data" / "tekken_240718.json").read_bytes())
    config = packaged["config"] | {
        "default_vocab_size": NUM_SPECIAL + NUM_WORDS, "default_num_special_tokens": NUM_SPECIAL,
        "version": version or packaged["config"]["version"],
    }  # fmt: skip
    path = folder / "tekken.json"
    path.write_text(json.dumps({"config": config, "vocab": packaged["vocab"][: NUM_WORDS + 100]} | changes))
    return path
