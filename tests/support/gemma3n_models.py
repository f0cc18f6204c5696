"""Tiny random models that hear as Gemma 3n does, with files as published, and what Transformers answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import tokenizers
import torch
import transformers
from transformers.models.gemma3n import modeling_gemma3n

from benchmarks.models import byte_tokenizer
from tests.support.audio_files import RATE, Samples
from tests.support.kept_models import kept_model
from tests.support.tiny_mixtures import GEMMA3N

MARKS = {
    "boi_token": "<start_of_image>", "boa_token": "<start_of_audio>", "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>", "eoa_token": "<end_of_audio>", "audio_token": "<audio_soft_token>",
}  # fmt: skip
AUDIO_TOKENS = 6
_OTHERS = 2  # ids of images, and of audio: those of the last four tokens
_TEMPLATE = (
    "{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'audio' %}{{ '<audio_soft_token>' }}{% elif part['type'] == 'image' %}"
    "{{ '<image_soft_token>' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


class _Eyes(torch.nn.Module):
    """Takes the place of the image encoder, which is not in Transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.timm_model = torch.nn.Linear(2, 2)


def make_gemma3n(folder: Path, *, seed: int = 0) -> Path:
    """Saves a model with tokenizer, chat template and audio processor; the same seed gives the same weights.

    Neither the end-of-sequence token nor those of media are ever the likeliest ones.
    """
    tokenizer = save_gemma3n_processor(folder)
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in MARKS.items()}
    first = ids["eoi_token"]  # of ids that the text model has no embeddings for
    text = GEMMA3N | {
        "vocab_size": first + 2 * _OTHERS, "vocab_size_per_layer_input": first, "hidden_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    }  # fmt: skip
    audio = {
        "input_feat_size": 16, "hidden_size": 32, "conf_num_attention_heads": 2, "conf_num_hidden_layers": 2,
        "sscp_conv_channel_size": (8, 4), "conf_attention_chunk_size": 4, "conf_attention_context_left": 5,
        "vocab_size": _OTHERS, "vocab_offset": first + _OTHERS,
    }  # fmt: skip
    config = transformers.Gemma3nConfig(
        text_config=text, audio_config=audio, audio_soft_tokens_per_image=AUDIO_TOKENS,
        vision_config={"hidden_size": 16, "vocab_size": _OTHERS, "vocab_offset": first},
        **{f"{name}_id": token_id for name, token_id in ids.items()},
    )  # fmt: skip
    torch.manual_seed(seed)
    model = _class()(config)
    for name, parameter in model.named_parameters():
        is_scale = parameter.dim() == 1 and name.endswith(("weight", "scale"))
        torch.nn.init.normal_(parameter, mean=float(is_scale), std=0.25 if parameter.dim() > 1 else 0.2)
    with torch.no_grad():
        model.get_output_embeddings().weight[[tokenizer.eos_token_id, *range(first, first + 2 * _OTHERS)]] = 0.0
    model.save_pretrained(folder)
    return folder


def save_gemma3n_processor(folder: Path) -> transformers.PreTrainedTokenizerFast:
    """Saves a tokenizer, which is returned, a chat template and an audio processor."""
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    transformers.Gemma3nAudioFeatureExtractor(feature_size=16).save_pretrained(folder)
    hearing = json.loads((folder / "preprocessor_config.json").read_text())
    seeing = {"image_processor_type": "SiglipImageProcessorFast", "image_seq_length": 256}
    processor = {"processor_class": "Gemma3nProcessor", "audio_seq_length": AUDIO_TOKENS}
    (folder / "preprocessor_config.json").write_text(json.dumps(hearing | seeing | processor))
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return tokenizer


def reference_generate(
    folder: Path, messages: Sequence[Mapping[str, Any]], audios: Sequence[Samples], count: int
) -> tuple[list[int], list[int]]:
    """The prompt's token ids, and those of the likeliest continuation; audios have to be of one length."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    heard = MARKS["boa_token"] + AUDIO_TOKENS * MARKS["audio_token"] + MARKS["eoa_token"]
    prompt = tokenizer.encode(text.replace(MARKS["audio_token"], f"\n\n{heard}\n\n"), add_special_tokens=False)
    inputs: Mapping[str, Any] = {}
    if audios:
        extractor = transformers.Gemma3nAudioFeatureExtractor.from_pretrained(folder)
        inputs = extractor(list(audios), sampling_rate=RATE, return_tensors="pt")
    model = kept_model(folder, lambda: _class().from_pretrained(folder, dtype=torch.float32).eval())
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
            eos_token_id=None, pad_token_id=0, **inputs,
        )  # fmt: skip
    return prompt, output[0, len(prompt) :].tolist()


def _class() -> Any:
    """Transformers' class, which does without timm here."""
    make = transformers.AutoModel.from_config

    class Made:
        @staticmethod
        def from_config(config: Any) -> Any:
            return _Eyes() if isinstance(config, transformers.Gemma3nVisionConfig) else make(config)

    class Gemma3nForConditionalGeneration(transformers.Gemma3nForConditionalGeneration):
        def __init__(self, config: Any) -> None:
            with mock.patch.object(modeling_gemma3n, "AutoModel", Made):
                super().__init__(config)

    return Gemma3nForConditionalGeneration


def _tokenizer() -> transformers.PreTrainedTokenizerFast:
    backend = byte_tokenizer(258).backend_tokenizer
    special = ["<start_of_turn>", "<end_of_turn>", *MARKS.values()]
    backend.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in special])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end_of_turn>", pad_token="<end_of_turn>", extra_special_tokens=MARKS
    )
