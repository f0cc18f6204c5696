"""How a model's video processor scales and normalizes frames: its files over the defaults of its class.

Transformers' video processors need torch and torchvision, which the tokenizer service does without, so their defaults
are repeated here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from PIL.Image import Resampling

_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_HALF = (0.5, 0.5, 0.5)
# Files with the settings, the first one that has them; in processor_config.json they are a part.
_PART, _FILES = (
    "video_processor",
    ("processor_config.json", "video_preprocessor_config.json", "preprocessor_config.json"),
)
_EDGES = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
# What requests may not change: the encoder was made for it.
_FIXED = frozenset({
    "patch_size", "merge_size", "temporal_patch_size", "max_duration", "max_soft_tokens", "pooling_kernel_size",
})  # fmt: skip


@dataclass(frozen=True)
class VideoSettings:
    """Settings by their names in the files.

    Attributes:
        size: height and width of a frame; or the least and the greatest area as shortest_edge and longest_edge, of a
            frame for Qwen2-VL's processor, of all frames together for Qwen3-VL's and GLM's. Gemma 4's has none.
        max_duration: seconds of a video whose frames are taken at the usual rate, by GLM-4.1V's processor.
        max_soft_tokens: the most embeddings of a frame, for Gemma 4's processor.
        pooling_kernel_size: patches along each side of one of these.
    """

    size: Mapping[str, int]
    image_mean: tuple[float, ...] = _CLIP_MEAN
    image_std: tuple[float, ...] = _CLIP_STD
    resample: int = Resampling.BICUBIC
    patch_size: int = 0
    merge_size: int = 2
    temporal_patch_size: int = 2
    rescale_factor: float = 1 / 255
    do_rescale: bool = True
    do_normalize: bool = True
    max_duration: int = 300
    max_soft_tokens: int = 70
    pooling_kernel_size: int = 3

    def changed(self, changes: Mapping[str, Any]) -> VideoSettings:
        """The settings with those of a request.

        Raises:
            ValueError: a setting is not one that can be changed.
        """
        known = {*(each.name for each in fields(self)), *_EDGES} - _FIXED
        if unknown := sorted(set(changes) - known):
            raise ValueError(f"{unknown[0]!r} is no setting for videos; these are: {', '.join(sorted(known))}")
        return self.updated(changes)

    def updated(self, changes: Mapping[str, Any]) -> VideoSettings:
        """The settings with some replaced. Names of others are skipped."""
        names = {each.name for each in fields(self)}
        chosen = {name: value for name, value in changes.items() if name in names and value is not None}
        size = {**self.size, **chosen.pop("size", {})}
        size |= {edge: changes[name] for name, edge in _EDGES.items() if changes.get(name) is not None}
        return replace(self, **chosen, size=size)


_SQUARE = MappingProxyType({"height": 384, "width": 384})
# By the class of the model's processor.
DEFAULTS: Mapping[str, VideoSettings] = MappingProxyType({
    **dict.fromkeys(
        ("Exaone4_5_Processor", "Qwen2VLProcessor", "Qwen2_5OmniProcessor", "Qwen2_5_VLProcessor"),
        VideoSettings({"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28}, patch_size=14),
    ),
    **dict.fromkeys(
        ("Lfm3VlProcessor", "Qwen3OmniMoeProcessor", "Qwen3VLProcessor"),
        VideoSettings({"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32}, _HALF, _HALF, patch_size=16),
    ),
    **dict.fromkeys(
        ("Glm4vProcessor", "Glm46VProcessor"),
        VideoSettings({"shortest_edge": 112 * 112, "longest_edge": 2 * 30_000 * 28 * 28}, patch_size=14),
    ),
    **dict.fromkeys(
        ("Gemma4Processor", "Gemma4UnifiedProcessor"),
        VideoSettings({}, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), patch_size=16),
    ),
    "InternVLProcessor": VideoSettings(_SQUARE),
    "LlavaOnevisionProcessor": VideoSettings(_SQUARE),
})  # fmt: skip


def read_settings(folder: Path, processor_class: str) -> VideoSettings:
    """The settings of a model's video processor.

    Args:
        folder: with the model's files.
        processor_class: name of the class of its processor; one of DEFAULTS.
    """
    for name in _FILES:
        if (folder / name).is_file():
            found = json.loads((folder / name).read_bytes())
            own = found.get(_PART) if name == _FILES[0] else found
            if own:
                return DEFAULTS[processor_class].updated(own)
    return DEFAULTS[processor_class]
