"""Tiny random models that hear as Granite Speech does, with files as published, and what Transformers answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

from benchmarks.models import byte_tokenizer
from engine_svc.requests.request import GenerationRequest

TOKEN, NUM_MELS = "<|audio|>", 8
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_PROCESSOR = {"processor_class": "GraniteSpeechProcessor", "audio_token": TOKEN}
_FEATURES = {
    "feature_extractor_type": "GraniteSpeechFeatureExtractor", "feature_size": NUM_MELS, "n_mels": NUM_MELS,
    "projector_window_size": 15, "projector_downsample_rate": 5, "sampling_rate": 16000,
}  # fmt: skip


def make_granite_speech(folder: Path, *, seed: int = 0) -> Path:
    """Saves a model with tokenizer, chat template, audio processor and adapter; the same seed gives the same weights.

    Neither the end-of-sequence token nor that of audio is ever the likeliest one. Tensors have the names of published
    models.
    """
    backend = byte_tokenizer(258).backend_tokenizer
    backend.add_special_tokens([tokenizers.AddedToken(TOKEN, normalized=False, special=True)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    audio_id = tokenizer.convert_tokens_to_ids(TOKEN)
    config = transformers.GraniteSpeechConfig(
        text_config={
            "model_type": "granite", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(tokenizer), "pad_token_id": None,
            "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "max_position_embeddings": 2048,
            "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.25,
            "logits_scaling": 2.0,
        },
        encoder_config={
            "input_dim": 2 * NUM_MELS, "num_layers": 2, "hidden_dim": 32, "num_heads": 2, "output_dim": 12,
            "context_size": 20, "max_pos_emb": 32,
        },
        projector_config={
            "model_type": "blip_2_qformer", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
            "num_attention_heads": 2, "encoder_hidden_size": 32, "cross_attention_frequency": 1,
        },
        audio_token_index=audio_id, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.GraniteSpeechForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        is_scale = parameter.dim() == 1 and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(is_scale), std=0.25 if parameter.dim() > 1 else 0.2)
    with torch.no_grad():
        model.get_output_embeddings().weight[[audio_id, tokenizer.eos_token_id]] = 0.0
    model.save_pretrained(folder)
    _rename(folder / "model.safetensors")
    _save_adapter(folder)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    (folder / "processor_config.json").write_text(json.dumps(_PROCESSOR))
    (folder / "preprocessor_config.json").write_text(json.dumps(_FEATURES))
    return folder


def reference_answer(folder: Path, request: GenerationRequest, count: int) -> list[int]:
    """The likeliest continuation in float64, without stopping at end-of-sequence tokens; features are the request's."""
    model: Any = transformers.GraniteSpeechForConditionalGeneration.from_pretrained(folder, dtype=torch.float64).eval()
    ids = torch.tensor([list(request.prompt_token_ids)])
    inputs: dict[str, torch.Tensor] = {}
    for audio in request.images:
        features = next(each for each in audio.inputs if each.name == "input_features")
        values = np.frombuffer(features.data, np.float32).reshape(features.shape)
        inputs["input_features"] = torch.from_numpy(values.astype(np.float64))
    with torch.inference_mode():
        output = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
            eos_token_id=None, pad_token_id=0, **inputs,
        )  # fmt: skip
    found: list[int] = output[0, ids.shape[1] :].tolist()
    return found


def _save_adapter(folder: Path) -> None:
    """Saves the adapter for audio, which is in the model's folder."""
    name = "base_model.model.language_model.model.layers.0.self_attn.v_proj"
    tensors = {f"{name}.lora_A.weight": torch.randn(4, 64), f"{name}.lora_B.weight": torch.randn(32, 4)}
    save_file(tensors, folder / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "target_modules": ["v_proj"], "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(fields))


def _rename(file: Path) -> None:
    """Names tensors as published models do."""
    tensors = {}
    for name, tensor in load_file(file).items():
        name = name.replace("model.language_model.", "language_model.model.")
        name = name if name.startswith("language_model.") else name.removeprefix("model.")
        tensors["language_model.lm_head.weight" if name == "lm_head.weight" else name] = tensor
    save_file(tensors, file, metadata={"format": "pt"})
