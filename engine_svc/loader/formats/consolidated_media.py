"""Names of the encoders of images and audio in Mistral's layout, and in Hugging Face's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_AUDIO = "mm_whisper_embeddings."
_OTHERWISE_AUDIO = "mm_streams_embeddings.embedding_module."  # in some checkpoints
_CONVOLUTION = re.compile(r"(conv_layers\.\d)\.conv")
_MODULES = {
    "vision_encoder.patch_conv": "vision_tower.patch_conv", "vision_encoder.ln_pre": "vision_tower.ln_pre",
    "vision_language_adapter.w_in": "multi_modal_projector.linear_1",
    "vision_language_adapter.w_out": "multi_modal_projector.linear_2",
    "patch_merger.merging_layer": "multi_modal_projector.patch_merger.merging_layer",
    "pre_mm_projector_norm": "multi_modal_projector.norm",
    f"{_AUDIO}audio_language_projection.0": "multi_modal_projector.linear_1",
    f"{_AUDIO}audio_language_projection.2": "multi_modal_projector.linear_2",
    f"{_AUDIO}tok_embeddings": "embed_tokens",
}  # fmt: skip
_WHISPER_MODULES = {
    f"{_AUDIO}whisper_encoder.conv_layers.0": "audio_tower.conv1",
    f"{_AUDIO}whisper_encoder.conv_layers.1": "audio_tower.conv2",
    f"{_AUDIO}whisper_encoder.transformer.norm": "audio_tower.layer_norm",
}
_LIVE_MODULES = {
    f"{_AUDIO}whisper_encoder.conv_layers.0": "audio_tower.embedder.conv1",
    f"{_AUDIO}whisper_encoder.conv_layers.1": "audio_tower.embedder.conv2",
    f"{_AUDIO}whisper_encoder.transformer.norm": "audio_tower.norm",
}


@dataclass(frozen=True)
class _Layers:
    """The layers of an encoder: what leads to their numbers, there and in Hugging Face's layout, and their modules."""

    there: str
    ours: str
    modules: Mapping[str, str]


_VISION_LAYERS = _Layers("vision_encoder.transformer.layers.", "vision_tower.transformer.layers.", {
    "attention_norm": "attention_norm", "ffn_norm": "ffn_norm", "attention.wq": "attention.q_proj",
    "attention.wk": "attention.k_proj", "attention.wv": "attention.v_proj", "attention.wo": "attention.o_proj",
    "feed_forward.w1": "feed_forward.gate_proj", "feed_forward.w2": "feed_forward.down_proj",
    "feed_forward.w3": "feed_forward.up_proj",
})  # fmt: skip
_IN_AUDIO_LAYERS = {
    "attention_norm": "self_attn_layer_norm", "ffn_norm": "final_layer_norm", "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
}  # fmt: skip
_WHISPER_LAYERS = _Layers(f"{_AUDIO}whisper_encoder.transformer.layers.", "audio_tower.layers.", _IN_AUDIO_LAYERS | {
    "attention.wo": "self_attn.out_proj", "feed_forward.w1": "fc1", "feed_forward.w2": "fc2",
})  # fmt: skip
_LIVE_LAYERS = _Layers(_WHISPER_LAYERS.there, _WHISPER_LAYERS.ours, _IN_AUDIO_LAYERS | {
    "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
})  # fmt: skip


def module_of_encoder(module: str, *, is_live: bool = False) -> str | None:
    """The name of an encoder's module in Hugging Face's layout, within the model; None if it is none.

    Args:
        is_live: of Voxtral Realtime.
    """
    if module.startswith(_OTHERWISE_AUDIO):
        module = _AUDIO + module.removeprefix(_OTHERWISE_AUDIO)
    module = _CONVOLUTION.sub(r"\1", module)
    for layers in (_VISION_LAYERS, _LIVE_LAYERS if is_live else _WHISPER_LAYERS):
        number, _, inner = module.removeprefix(layers.there).partition(".")
        if module.startswith(layers.there) and inner in layers.modules:
            return f"{layers.ours}{number}.{layers.modules[inner]}"
    return (_MODULES | (_LIVE_MODULES if is_live else _WHISPER_MODULES)).get(module)
