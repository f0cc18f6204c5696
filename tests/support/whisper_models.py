"""Tiny random Whisper models, and what Transformers' answers are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from engine_svc.requests.request import GenerationRequest
from quire.images import Image, ImageInput
from quire.sampling import SamplingParameters
from tests.support.audio_processors import NUM_MELS, save_audio_processor

ROWS = 100  # of the encoder, for a recording of 2 seconds
FRAMES = 2 * ROWS
ENCODED = 128  # tokens of a recording
PLACEHOLDER = 7  # any token: the engine goes by places


def make_whisper_model(folder: Path, family: str = "whisper", *, seed: int = 0) -> Path:
    """Saves a model with tokenizer and processor; the same seed gives the same weights.

    The end-of-sequence token is never the likeliest one.

    Args:
        family: only `whisper`.
    """
    save_audio_processor(folder, family)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    eos = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    config = transformers.WhisperConfig(
        vocab_size=len(tokenizer), d_model=64, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=48,
        decoder_layers=3, decoder_attention_heads=4, decoder_ffn_dim=96, num_mel_bins=NUM_MELS,
        max_source_positions=ROWS, max_target_positions=60, eos_token_id=eos, bos_token_id=eos, pad_token_id=eos,
        decoder_start_token_id=tokenizer.convert_tokens_to_ids("<|startoftranscript|>"),
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.WhisperForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        is_scale = parameter.dim() == 1 and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(is_scale), std=0.25 if parameter.dim() > 1 else 0.2)
    with torch.no_grad():
        model.get_output_embeddings().weight[eos] = 0.0
    model.save_pretrained(folder)
    return folder


def spectrogram(seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The spectrogram [1, NUM_MELS, FRAMES] of a recording."""
    return np.random.default_rng(seed).normal(0, 0.5, (1, NUM_MELS, FRAMES)).astype(np.float32)


def whisper_request(
    features: np.ndarray[Any, np.dtype[np.float32]], text: Sequence[int], sampling: SamplingParameters,
    *, first: Sequence[int] = (), images: int = 1,
) -> GenerationRequest:  # fmt: skip
    """The engine's request to go on with a text about a recording.

    Args:
        first: tokens before the recording, which the model does not take.
        images: how many recordings the prompt has.
    """
    mask = np.ones((1, FRAMES), np.bool_)
    inputs = {"input_features": features, "input_features_mask": mask}
    given = tuple(ImageInput(name, each.dtype.name, each.shape, each.tobytes()) for name, each in inputs.items())
    image = Image(len(first), ENCODED, given, (), ())
    return GenerationRequest("r", [*first, *[PLACEHOLDER] * ENCODED, *text], sampling, images=(image,) * images)


def whisper_reference(
    folder: Path, features: np.ndarray[Any, np.dtype[np.float32]], text: Sequence[int], count: int
) -> list[int]:
    """The likeliest `count` tokens after the text in float64; the end-of-sequence token does not end them."""
    model: Any = transformers.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float64).eval()
    found = list(text)
    with torch.inference_mode():
        encoded = model.model.encoder(torch.from_numpy(features).double())
        for _ in range(count):
            logits = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([found])).logits
            found.append(int(logits[0, -1].argmax()))
    return found[len(text) :]


def likeliest_of(
    folder: Path, features: np.ndarray[Any, np.dtype[np.float32]], text: Sequence[int], tokens: Sequence[int]
) -> int:
    """Which of the tokens is the likeliest after the text, in float64."""
    model: Any = transformers.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.inference_mode():
        logits = model(
            input_features=torch.from_numpy(features).double(), decoder_input_ids=torch.tensor([text])
        ).logits
    return tokens[int(logits[0, -1, tokens].argmax())]
