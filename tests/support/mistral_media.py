"""Tiny models of Mistral's that see or hear, in Hugging Face's layout and in Mistral's own, and their answers."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from transformers.models.whisper.modeling_whisper import sinusoids

from engine_svc.media.base import tensor_of
from engine_svc.requests.request import GenerationRequest
from quire.media import MediaKind
from quire.sampling import SamplingParameters
from quire.tokenizer.tekken import read_tekken
from tests.support.media_requests import prepare
from tests.support.mistral_files import params_of_mistral4, write_mistral
from tests.support.tekken import AUDIO, IMAGES, LIVE_AUDIO, NUM_SPECIAL, NUM_WORDS, write_media_tekken
from tests.support.tiny_mixtures import COMPRESSED
from tokenizer_svc.media import Medium
from tokenizer_svc.mistral_conversations import MistralConversations

TEXT: dict[str, Any] = {
    "model_type": "mistral", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048,
    "sliding_window": None, "vocab_size": NUM_SPECIAL + NUM_WORDS, "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip
GROWING: dict[str, Any] = TEXT | {
    "model_type": "ministral3", "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
    },
}  # fmt: skip
MIXED: dict[str, Any] = TEXT | COMPRESSED | {
    "model_type": "mistral4", "head_dim": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "n_shared_experts": 1, "routed_scaling_factor": 1.0, "first_k_dense_replace": 1,
    "rope_parameters": GROWING["rope_parameters"],
}  # fmt: skip
_VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56,
    "num_channels": 3,
}  # fmt: skip
_PIXTRAL = {"model_type": "pixtral", "head_dim": 16, "hidden_act": "silu"}


@dataclass(frozen=True)
class Family:
    """A kind of model: its configuration in Hugging Face's layout, what params.json has besides the text model, and
    what tekken.json has."""

    name: str
    kind: MediaKind
    config: Mapping[str, Any]
    params: Mapping[str, Any]
    tekken: Mapping[str, Any]
    text: Mapping[str, Any] = field(default_factory=lambda: TEXT)

    @property
    def class_name(self) -> str:
        """In Transformers."""
        return f"{self.name}ForConditionalGeneration"


_PATCH_MERGE: dict[str, Any] = {
    "vision_encoder": _VISION | {
        "patch_size": 7, "rope_theta": 10000.0, "image_token_id": 10, "image_break_token_id": 12,
        "image_end_token_id": 13, "mm_projector_id": "patch_merge", "spatial_merge_size": 2,
        "add_pre_mm_projector_layer_norm": True, "adapter_bias": False, "max_image_size": 56,
    },
}  # fmt: skip
_MISTRAL3: dict[str, Any] = {
    "vision_config": _VISION | _PIXTRAL | {"patch_size": 7}, "image_token_index": 10, "spatial_merge_size": 2,
}  # fmt: skip
FAMILIES: Mapping[str, Family] = {
    "pixtral": Family(
        "Llava", MediaKind.IMAGE, {
            "vision_config": _VISION | _PIXTRAL | {"patch_size": 14}, "image_token_index": 10,
            "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
        },
        {"vision_encoder": _VISION | {"patch_size": 14, "rope_theta": 10000.0, "image_token_id": 10}},
        {"multimodal": {"image_patch_size": 14, "max_image_size": 56}},
    ),
    "mistral3": Family(
        "Mistral3", MediaKind.IMAGE, _MISTRAL3, _PATCH_MERGE | {
            "yarn": {
                "original_max_position_embeddings": 16, "factor": 16, "apply_scale": False, "beta": 32, "alpha": 1,
            },
            "llama_4_scaling": {"original_max_position_embeddings": 16, "beta": 0.3},
        },
        {"image": IMAGES}, GROWING,
    ),
    "mistral4": Family(
        "Mistral3", MediaKind.IMAGE, _MISTRAL3, _PATCH_MERGE | params_of_mistral4(MIXED), {"image": IMAGES},
        MIXED,
    ),
    "voxtral": Family(
        "Voxtral", MediaKind.AUDIO, {
            "audio_config": {
                "model_type": "voxtral_encoder", "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2,
                "num_attention_heads": 2, "num_mel_bins": 16, "max_source_positions": 100,
            },
            "audio_token_id": 24, "projector_hidden_act": "gelu",
        },
        {
            "multimodal": {
                "whisper_model_args": {
                    "encoder_args": {
                        "dim": 32, "n_layers": 2, "n_heads": 2, "head_dim": 16, "hidden_dim": 128, "vocab_size": 9,
                        "max_source_positions": 100, "audio_encoding_args": {"num_mel_bins": 16},
                    },
                    "downsample_args": {"downsample_factor": 4},
                },
            },
        },
        {"audio": AUDIO},
    ),
    "voxtral_realtime": Family(
        "VoxtralRealtime", MediaKind.AUDIO, {
            "audio_config": {
                "model_type": "voxtral_realtime_encoder", "hidden_size": 32, "intermediate_size": 48,
                "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16, "num_mel_bins": 16,
                "sliding_window": 20, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            },
        },
        {
            "ada_rms_norm_t_cond": True, "ada_rms_norm_t_cond_dim": 32, "sliding_window": 16, "multimodal": {
                "whisper_model_args": {
                    "encoder_args": {
                        "dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 2, "head_dim": 16, "hidden_dim": 48,
                        "causal": True, "pos_embed": "rope", "rope_theta": 1e6, "norm_eps": 1e-5, "sliding_window": 20,
                        "audio_encoding_args": {"num_mel_bins": 16}, "max_source_positions": None,
                    },
                    "downsample_args": {"downsample_factor": 4},
                },
            },
        },
        {"audio": LIVE_AUDIO}, TEXT | {"model_type": "voxtral_realtime_text", "sliding_window": 16},
    ),
}  # fmt: skip


def make_mistral_model(folder: Path, family: str, *, seed: int = 0) -> Path:
    """Saves a model with tekken.json in Hugging Face's layout; the same seed gives the same weights.

    Neither the end-of-sequence token nor those of media are ever the likeliest ones.
    """
    kind = FAMILIES[family]
    folder.mkdir(exist_ok=True)
    write_media_tekken(folder, **kind.tekken)
    config = getattr(transformers, f"{kind.name}Config")(
        text_config=copy.deepcopy(dict(kind.text)), tie_word_embeddings=False, **kind.config
    )
    torch.manual_seed(seed)
    model = getattr(transformers, kind.class_name)(config)
    for name, parameter in model.named_parameters():
        is_scale = parameter.dim() == 1 and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(is_scale), std=0.25 if parameter.dim() > 1 else 0.2)
    with torch.no_grad():
        model.get_output_embeddings().weight[[2, 10, 24]] = 0.0
        if family == "voxtral":
            positions = model.model.audio_tower.embed_positions.weight
            positions.copy_(sinusoids(*positions.shape))
    model.save_pretrained(folder)
    return folder


def as_mistrals(source: Path, folder: Path, family: str) -> Path:
    """Writes a model as Mistral publishes it: params.json, tekken.json and consolidated.safetensors."""
    kind = FAMILIES[family]
    folder.mkdir()
    write_media_tekken(folder, **kind.tekken)
    write_mistral(load_file(source / "model.safetensors"), {**kind.text, **kind.config}, folder)
    text = {
        "dim": 64, "n_layers": 2, "head_dim": kind.text["head_dim"], "hidden_dim": 96, "n_heads": 4,
        "n_kv_heads": kind.text["num_key_value_heads"], "norm_eps": 1e-5, "vocab_size": TEXT["vocab_size"],
        "rope_theta": 1e6, "dtype": "float32",
    }  # fmt: skip
    (folder / "params.json").write_text(json.dumps(text | dict(kind.params)))
    return folder


def mistral_request(
    folder: Path, messages: list[dict[str, Any]], files: Sequence[bytes], sampling: SamplingParameters, kind: MediaKind,
    **variables: Any,
) -> GenerationRequest:  # fmt: skip
    """The engine's request, as the tokenizer service prepares it without its processes."""
    tekken = read_tekken(folder)
    media = [Medium(kind, (file,)) for file in files]
    preparer, prepared = prepare(folder, media, of_mistral=tekken.media)
    rendered = MistralConversations(str(tekken.conversations), 10**6).render(
        messages, None, add_generation_prompt=True, continue_final_message=False, variables=variables, template=None,
        placeholders=preparer.wrapped,
    )  # fmt: skip
    assert rendered.token_ids is not None
    prepared = preparer.ordered(rendered.token_ids, prepared)
    texts = [tekken.tokenizer.encode(each.text, add_special_tokens=False).ids for each in prepared]
    token_ids = preparer.replaced(rendered.token_ids, texts)
    return GenerationRequest("r", token_ids, sampling, images=tuple(preparer.place(token_ids, prepared)))


def reference_answer(folder: Path, family: str, request: GenerationRequest, count: int) -> list[int]:
    """The likeliest continuation in float64, without stopping at end-of-sequence tokens."""
    model_class = getattr(transformers, FAMILIES[family].class_name)
    model = model_class.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager").eval()
    ids = torch.tensor([list(request.prompt_token_ids)])
    with torch.inference_mode():
        output = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
            eos_token_id=None, pad_token_id=0, **_inputs(request),
        )  # fmt: skip
    return output[0, ids.shape[1] :].tolist()


def _inputs(request: GenerationRequest) -> dict[str, torch.Tensor]:
    """What the model takes besides tokens: images filled up to the largest, or the parts of all audios."""
    cpu = torch.device("cpu")
    given = [{each.name: tensor_of(each, cpu) for each in image.inputs} for image in request.images or ()]
    if not given:
        return {}
    if "input_features" in given[0]:
        return {"input_features": torch.cat([each["input_features"] for each in given]).double()}
    sizes = torch.cat([each["image_sizes"] for each in given])
    pixels = torch.zeros(len(given), 3, *sizes.max(0).values.tolist(), dtype=torch.float64)
    for place, image, own in zip(pixels, request.images or (), given, strict=True):
        scale, shift = (torch.tensor(each).double()[:, None, None] for each in (image.pixel_scale, image.pixel_shift))
        (values,) = own["pixel_values"].double() * scale + shift
        place[:, : values.shape[1], : values.shape[2]] = values
    return {"pixel_values": pixels, "image_sizes": sizes}
