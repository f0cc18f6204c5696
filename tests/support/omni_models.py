"""Tiny random models that see and hear, as Qwen publishes its Omni models, and what Transformers answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from benchmarks.models import byte_tokenizer
from engine_svc.requests.request import GenerationRequest
from quire.images import SOUND
from quire.sampling import SamplingParameters
from tests.support.audio_files import RATE, Samples
from tests.support.media_requests import media_request
from tests.support.vision_models.prompts import medium_of

_TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 7, "out_hidden_size": 64,
}  # fmt: skip
_AUDIO: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "num_mel_bins": 16,
    "output_dim": 64,
}  # fmt: skip
_VIDEOS = {
    "video_processor_type": "Qwen2VLVideoProcessor", "patch_size": 7,
    "size": {"shortest_edge": 784, "longest_edge": 9000}, "cap_pixels_per_frame": False,
}  # fmt: skip


def _rope(*section: int, **fields: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(section)} | fields


@dataclass(frozen=True)
class Family:
    """A kind of model.

    Attributes:
        name: of its classes in Transformers, without their endings.
        model_type: of the whole model.
        tokens: special ones, by the names that the tokenizer has for them.
        positions: of a video for each second.
    """

    name: str
    model_type: str
    tokens: Mapping[str, str]
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    audio: Mapping[str, Any]
    positions: int


def _tokens(vision: Sequence[str], pads: Sequence[str], audio: Sequence[str]) -> dict[str, str]:
    names = ("vision_bos_token", "vision_eos_token", "image_token", "video_token", "audio_token")
    return dict(zip((*names, "audio_bos_token", "audio_eos_token"), (*vision, *pads, *audio), strict=True))


FAMILIES: Mapping[str, Family] = {
    "qwen2_5_omni": Family(
        "Qwen2_5Omni", "qwen2_5_omni",
        _tokens(
            ("<|vision_bos|>", "<|vision_eos|>"), ("<|IMAGE|>", "<|VIDEO|>", "<|AUDIO|>"),
            ("<|audio_bos|>", "<|audio_eos|>"),
        ),
        _TEXT | {"rope_parameters": _rope(2, 3, 3)},
        _VISION | {"window_size": 28, "fullatt_block_indexes": [1]}, _AUDIO | {"n_window": 100}, 25,
    ),
    "qwen3_omni": Family(
        "Qwen3OmniMoe", "qwen3_omni_moe",
        _tokens(
            ("<|vision_start|>", "<|vision_end|>"), ("<|image_pad|>", "<|video_pad|>", "<|audio_pad|>"),
            ("<|audio_start|>", "<|audio_end|>"),
        ),
        _TEXT | {
            "rope_parameters": _rope(4, 2, 2, mrope_interleaved=True), "num_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
        _VISION | {"depth": 3, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16},
        _AUDIO | {"n_window": 50, "n_window_infer": 200, "downsample_hidden_size": 8}, 13,
    ),
}  # fmt: skip


def make_omni_model(folder: Path, family: str, *, seed: int = 0) -> Path:
    """Saves a model with tokenizer, chat template and processors; the same seed gives the same weights.

    Neither the end-of-sequence token nor those of media are ever the likeliest ones.
    """
    kind = FAMILIES[family]
    tokenizer = _tokenizer(kind)
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in kind.tokens.items()}
    text = {**kind.text, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
    config = getattr(transformers, f"{kind.name}ThinkerConfig")(
        text_config=text, vision_config=dict(kind.vision), audio_config=dict(kind.audio),
        image_token_id=ids["image_token"], video_token_id=ids["video_token"], audio_token_id=ids["audio_token"],
        vision_start_token_id=ids["vision_bos_token"], audio_start_token_id=ids["audio_bos_token"],
        position_id_per_seconds=kind.positions,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind.name}ThinkerForConditionalGeneration")(config)
    for name, parameter in model.named_parameters():
        is_scale = parameter.dim() == 1 and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(is_scale), std=0.25 if parameter.dim() > 1 else 0.2)
    with torch.no_grad():
        never = [*(ids[name] for name in ("image_token", "video_token", "audio_token")), tokenizer.eos_token_id]
        model.get_output_embeddings().weight[never] = 0.0
    model.save_pretrained(folder)
    _add_speech(folder, kind.model_type)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(_template(kind.tokens))
    images = Qwen2VLImageProcessorPil(patch_size=7, size={"shortest_edge": 784, "longest_edge": 3136}).to_dict()
    hearing = transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=6).to_dict()
    _write(folder / "preprocessor_config.json", images | hearing | {"processor_class": f"{kind.name}Processor"})
    _write(folder / "video_preprocessor_config.json", _VIDEOS)
    return folder


def omni_request(
    folder: Path, messages: Sequence[Mapping[str, Any]],
    media: Sequence[Image.Image | Samples | Sequence[Image.Image] | bytes], sampling: SamplingParameters,
) -> GenerationRequest:  # fmt: skip
    """The engine's request, as the tokenizer service prepares it without its processes. Videos have their sound."""
    return media_request(folder, messages, [*map(medium_of, media)], sampling, {"use_audio_in_video": True})


def reference_answer(
    folder: Path, family: str, request: GenerationRequest, images: Sequence[Image.Image], audios: Sequence[Samples],
    count: int,
) -> list[int]:  # fmt: skip
    """The likeliest continuation in float64, without stopping at end-of-sequence tokens.

    Images and audios, that of a video among them, are prepared by Transformers; the video is the request's.
    """
    model_class = getattr(transformers, f"{FAMILIES[family].name}ThinkerForConditionalGeneration")
    model = model_class.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager").eval()
    ids = torch.tensor([list(request.prompt_token_ids)])
    inputs: dict[str, Any] = {}
    if images:
        processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
        inputs |= processor(list(images), return_tensors="pt")
    if audios:
        extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
        padding = "max_length" if family == "qwen2_5_omni" else True
        found = extractor(
            list(audios), sampling_rate=RATE, return_attention_mask=True, return_tensors="pt", padding=padding,
            truncation=False,
        )  # fmt: skip
        inputs |= {
            "input_features": found["input_features"], "feature_attention_mask": found["attention_mask"],
        }  # fmt: skip
    inputs |= _video(request)
    inputs = {name: each.double() if each.is_floating_point() else each for name, each in inputs.items()}
    has_sound = any(each.name == SOUND for image in request.images for each in image.inputs)
    with torch.inference_mode():
        output = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
            eos_token_id=None, pad_token_id=0, use_audio_in_video=has_sound, **inputs,
        )  # fmt: skip
    return output[0, ids.shape[1] :].tolist()


def _add_speech(folder: Path, model_type: str) -> None:
    """Makes the model that reads and hears a part of one that also speaks, as it is published."""
    thinker = json.loads((folder / "config.json").read_text())
    _write(folder / "config.json", {"model_type": model_type, "thinker_config": thinker, "talker_config": {}})
    tensors = {f"thinker.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    speech = {f"{part}.norm.weight": torch.ones(3) for part in ("talker.model", "token2wav", "code2wav")}
    save_file(tensors | speech, folder / "model.safetensors", metadata={"format": "pt"})


def _video(request: GenerationRequest) -> dict[str, Any]:
    """The video of a request as the model takes it, if there is one."""
    for image in request.images or ():
        given = {each.name: np.frombuffer(each.data, each.dtype).reshape(each.shape) for each in image.inputs}
        if "second_per_grid_ts" in given:
            scale, shift = np.array(image.pixel_scale), np.array(image.pixel_shift)
            pixels = given["pixel_values"].astype(np.float64)
            apart = pixels.reshape(len(pixels), 3, -1) * scale[:, None] + shift[:, None]
            return {
                "pixel_values_videos": torch.from_numpy(apart.reshape(pixels.shape)),
                "video_grid_thw": torch.from_numpy(given["image_grid_thw"].copy()),
                "video_second_per_grid": torch.from_numpy(given["second_per_grid_ts"].copy()),
            }
    return {}


def _tokenizer(kind: Family) -> transformers.PreTrainedTokenizerFast:
    backend = byte_tokenizer(258).backend_tokenizer
    special = [tokenizers.AddedToken(token, normalized=False, special=True) for token in kind.tokens.values()]
    backend.add_special_tokens(special)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|im_end|>", extra_special_tokens=dict(kind.tokens)
    )


def _template(tokens: Mapping[str, str]) -> str:
    places = {"image": "vision", "video": "vision", "audio": "audio"}
    written = {
        kind: tokens[f"{place}_bos_token"] + tokens[f"{kind}_token"] + tokens[f"{place}_eos_token"]
        for kind, place in places.items()
    }
    cases = "".join(f"{{% if part['type'] == '{kind}' %}}{text}{{% endif %}}" for kind, text in written.items())
    return (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% for part in message['content'] %}" + cases + "{% if 'text' in part %}{{ part['text'] }}{% endif %}"
        "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


def _write(file: Path, fields: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(fields))
