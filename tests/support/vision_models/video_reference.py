"""Transformers' video processors without torchvision, which they import: frames are resized by Pillow instead."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers.image_processing_backends
import transformers.video_processing_utils
from PIL.Image import Resampling, fromarray

_TORCHVISION = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
_FUNCTIONS = "torchvision.transforms.v2.functional"


def video_processor(folder: Path) -> Any:
    """The video processor of the model in a folder."""
    fields: Mapping[str, Any] = json.loads((folder / "video_preprocessor_config.json").read_text())
    return video_processor_class(fields["video_processor_type"])(**fields)


def video_processor_class(name: str) -> Any:
    """A class of Transformers' video processors."""
    return _classes()[name]


@functools.cache
def _classes() -> Mapping[str, type[Any]]:
    """The classes by their names, imported while a module stands for torchvision, which is not left behind."""
    functions: Any = ModuleType(_FUNCTIONS)
    functions.normalize, functions.grayscale_to_rgb = _normalized, lambda video: video
    functions.resize, functions.InterpolationMode = _resized_to, Any
    made: dict[str, Any] = {name: ModuleType(name) for name in _TORCHVISION} | {_FUNCTIONS: functions}
    for name, module in made.items():
        module.__path__ = []
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(made[parent], own, module)
    sys.modules.update(made)
    # Gemma 4's has no other name for the functions without it.
    there = mock.patch("transformers.utils.is_torchvision_v2_available", return_value=True)
    try:
        there.start()
        found = {
            name: getattr(importlib.import_module(f"transformers.models.{family}.video_processing_{family}"), name)
            for family, name in (
                ("qwen2_vl", "Qwen2VLVideoProcessor"), ("qwen3_vl", "Qwen3VLVideoProcessor"),
                ("glm4v", "Glm4vVideoProcessor"), ("glm46v", "Glm46VVideoProcessor"),
                ("internvl", "InternVLVideoProcessor"), ("llava_onevision", "LlavaOnevisionVideoProcessor"),
                ("gemma4", "Gemma4VideoProcessor"), ("gemma4_unified", "Gemma4UnifiedVideoProcessor"),
            )
        }  # fmt: skip
    finally:
        there.stop()
        for name in made:
            del sys.modules[name]
    base: Any = transformers.image_processing_backends
    base.tvF = functions
    base.TorchvisionBackend.resize = _resized
    utilities: Any = transformers.video_processing_utils
    utilities.tvF = functions
    return found


def _resized(self: Any, image: torch.Tensor, size: Any, resample: Any = None, **kwargs: Any) -> torch.Tensor:
    return _resized_to(image, (size.height, size.width), resample)


def _resized_to(image: torch.Tensor, size: Sequence[int], interpolation: Any, **kwargs: Any) -> torch.Tensor:
    height, width = size
    frames = image.reshape(-1, *image.shape[-3:]).permute(0, 2, 3, 1).numpy()
    made = [np.array(fromarray(frame).resize((width, height), Resampling(int(interpolation)))) for frame in frames]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).reshape(*image.shape[:-2], height, width)


def _normalized(values: torch.Tensor, mean: Any, std: Any, inplace: bool = False) -> torch.Tensor:
    mean, std = (torch.as_tensor(each, dtype=values.dtype).view(-1, 1, 1) for each in (mean, std))
    return (values - mean) / std
