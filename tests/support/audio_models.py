"""Tiny random audio-language models, and what Transformers' answers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from engine_svc.requests.request import GenerationRequest
from quire.media import MediaKind
from quire.sampling import SamplingParameters
from tests.support.audio_files import RATE, Samples, audio_file
from tests.support.audio_processors import save_audio_processor
from tests.support.media_requests import media_request
from tokenizer_svc.media import Medium

_TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048,
}  # fmt: skip
_WHISPER: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "num_mel_bins": 16,
}  # fmt: skip


@dataclass(frozen=True)
class AudioFamily:
    """A kind of model; `name` is that of its class in Transformers without ForConditionalGeneration."""

    name: str
    text_type: str
    audio: Mapping[str, Any]
    id_field: str = "audio_token_id"


# The processors' pieces have 2 seconds, of 200 frames.
FAMILIES: dict[str, AudioFamily] = {
    "qwen2_audio": AudioFamily(
        "Qwen2Audio", "qwen2", _WHISPER | {"model_type": "qwen2_audio_encoder", "max_source_positions": 100},
        "audio_token_index",
    ),
    "audioflamingo3": AudioFamily("AudioFlamingo3", "qwen2", {
        "model_type": "audioflamingo3_encoder", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 48, "num_mel_bins": 16, "max_source_positions": 100,
    }),
    "glmasr": AudioFamily("GlmAsr", "llama", {
        "model_type": "glmasr_encoder", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "num_mel_bins": 16, "max_position_embeddings": 100,
    }),
    "qwen3_asr": AudioFamily("Qwen3ASR", "qwen3", _WHISPER | {
        "model_type": "qwen3_asr_encoder", "output_dim": 64, "downsample_hidden_size": 8, "n_window": 50,
        "n_window_infer": 200,
    }),
}  # fmt: skip


def make_audio_model(folder: Path, family: str, *, seed: int = 0) -> Path:
    """Saves a model with tokenizer, chat template and audio processor; the same seed gives the same weights.

    Neither the end-of-sequence token nor audio tokens are ever the likeliest ones.
    """
    kind = FAMILIES[family]
    save_audio_processor(folder, family)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    audio_id = transformers.AutoProcessor.from_pretrained(folder).audio_token_id
    text = _TEXT | {
        "model_type": kind.text_type, "vocab_size": len(tokenizer), "bos_token_id": None, "pad_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }  # fmt: skip
    config = getattr(transformers, f"{kind.name}Config")(
        text_config=text, audio_config=dict(kind.audio), **{kind.id_field: audio_id}
    )
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind.name}ForConditionalGeneration")(config)
    for name, parameter in model.named_parameters():
        is_scale = parameter.dim() == 1 and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(is_scale), std=0.25 if parameter.dim() > 1 else 0.2)
    with torch.no_grad():
        model.get_output_embeddings().weight[[audio_id, tokenizer.eos_token_id]] = 0.0
    model.save_pretrained(folder)
    return folder


def audio_request(
    folder: Path, messages: Sequence[Mapping[str, Any]], audios: Sequence[Samples], sampling: SamplingParameters
) -> GenerationRequest:
    """The engine's request, as the tokenizer service prepares it without its processes."""
    media = [Medium(MediaKind.AUDIO, (audio_file(audio, "wavf"),)) for audio in audios]
    return media_request(folder, messages, media, sampling)


def reference_generate(
    folder: Path, messages: Sequence[Mapping[str, Any]], audios: Sequence[Samples], count: int,
    dtype: torch.dtype = torch.float64,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """The prompt's token ids, and those of the likeliest continuation, which does not stop at end-of-sequence tokens.

    The audios are those of the messages' audio parts, in order. Each is prepared alone, as some processors take only
    one for a text.
    """
    processor = transformers.AutoProcessor.from_pretrained(folder)
    model = _class_of(folder).from_pretrained(folder, dtype=dtype).eval()
    text = processor.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    first, *others = text.split(processor.audio_token)
    assert len(others) == len(audios)
    prompt, inputs = processor.tokenizer.encode(first, add_special_tokens=False), []
    for audio, after in zip(audios, others, strict=True):
        found = processor(text=[processor.audio_token], audio=[audio], sampling_rate=RATE, return_tensors="pt")
        prompt += found.pop("input_ids")[0].tolist()
        prompt += processor.tokenizer.encode(after, add_special_tokens=False)
        inputs.append(found)
    names = [name for name in (inputs[0] if inputs else {}) if "feature" in name]
    joined: dict[str, Any] = {name: torch.cat([each[name] for each in inputs]) for name in names}
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
            eos_token_id=None, pad_token_id=0,
            **{name: each.to(dtype) if each.is_floating_point() else each for name, each in joined.items()},
        )  # fmt: skip
    return prompt, output[0, len(prompt) :].tolist()


def _class_of(folder: Path) -> Any:
    config = transformers.AutoConfig.from_pretrained(folder)
    return getattr(transformers, config.architectures[0])
