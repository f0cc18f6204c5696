"""Writes the tokenizers and processors of tiny audio models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import transformers

from benchmarks.models import byte_tokenizer

NUM_MELS = 16
CHUNK_SECONDS = 2

_START = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
_CONTENT = (
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'audio' %}AUDIO{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
)
_END = (
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)  # fmt: skip


@dataclass(frozen=True)
class AudioFamily:
    """A kind of model; see `AUDIO_FAMILIES` for examples.

    Attributes:
        name: that of the classes in Transformers, without their endings.
        token: what the prompt has for each embedding of an audio.
        tokens: special tokens.
        token_attributes: special tokens that the tokenizer has names for.
        template: chat template; empty for the processor's own, if it has one.
        ends: the end-of-sequence token.
        times: whether there are tokens, which are not special, for the times in a chunk, 0.02 s apart.
    """

    name: str
    token: str
    tokens: tuple[str, ...] = ()
    token_attributes: Mapping[str, str] = field(default_factory=dict)
    template: str = ""
    ends: str = "<|im_end|>"
    times: bool = False


def _chat(audio: str) -> str:
    """A template in the manner of the real models."""
    return _START + _CONTENT.replace("AUDIO", audio) + _END


AUDIO_FAMILIES: Mapping[str, AudioFamily] = {
    "qwen2_audio": AudioFamily("Qwen2Audio", "<|AUDIO|>", ("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>")),
    "audioflamingo3": AudioFamily("AudioFlamingo3", "<sound>", ("<sound>",), template=_chat("<sound>")),
    "glmasr": AudioFamily(
        "GlmAsr", "<|pad|>", ("<|pad|>", "<|begin_of_audio|>", "<|end_of_audio|>"),
        template=_chat("<|begin_of_audio|><|pad|><|end_of_audio|>"),
    ),
    "qwen3_asr": AudioFamily(
        "Qwen3ASR", "<|audio_pad|>",
        token_attributes={
            "audio_token": "<|audio_pad|>", "audio_bos_token": "<|audio_start|>", "audio_eos_token": "<|audio_end|>",
        },
        template=_chat("<|audio_start|><|audio_pad|><|audio_end|>"),
    ),
    "whisper": AudioFamily("Whisper", "<|startoflm|>", (
        "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|zh|>", "<|translate|>", "<|transcribe|>",
        "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
    ), ends="<|endoftext|>", times=True),
}  # fmt: skip


def save_audio_processor(folder: Path, family: str) -> None:
    """Saves a tokenizer, whose first ids are those of the bytes 0 to 255, a processor and a chat template.

    The spectrograms have NUM_MELS bands; what is in chunks has those of CHUNK_SECONDS.

    Args:
        family: one of AUDIO_FAMILIES.
    """
    kind = AUDIO_FAMILIES[family]
    processor = getattr(transformers, f"{kind.name}Processor")(_feature_extractor(kind), audio_tokenizer(family))
    if kind.template:
        processor.chat_template = kind.template
    processor.save_pretrained(folder)


def audio_tokenizer(family: str) -> transformers.PreTrainedTokenizerFast:
    """The tokenizer of a family."""
    kind = AUDIO_FAMILIES[family]
    backend = byte_tokenizer(258).backend_tokenizer
    backend.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in kind.tokens])
    if kind.times:
        times = [f"<|{step / 50:.2f}|>" for step in range(50 * CHUNK_SECONDS + 1)]
        backend.add_tokens([tokenizers.AddedToken(time, normalized=False, special=False) for time in times])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=kind.ends,
        pad_token=kind.ends,
        extra_special_tokens=dict(kind.token_attributes) or list(kind.tokens),
    )


def _feature_extractor(kind: AudioFamily) -> Any:
    if kind.name == "Qwen3ASR":
        return transformers.Qwen3ASRFeatureExtractor(feature_size=NUM_MELS)
    return transformers.WhisperFeatureExtractor(feature_size=NUM_MELS, chunk_length=CHUNK_SECONDS)
