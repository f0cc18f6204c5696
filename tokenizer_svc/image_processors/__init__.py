"""Image processors of models for which the Transformers library has none without torchvision."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers.image_processing_base import ImageProcessingMixin

# Modules with an `ImageProcessor` each, by the type in the checkpoint's files, without the "Fast" at its end.
_MODULES: dict[str, str] = {
    "Cohere2VisionImageProcessor": "tokenizer_svc.image_processors.cohere2_vision",
    "Gemma4UnifiedImageProcessor": "tokenizer_svc.image_processors.gemma4_unified",
    "KimiK25VisionProcessor": "tokenizer_svc.image_processors.kimi_k25",  # the checkpoint's own code
    "Kimi_K25ImageProcessor": "tokenizer_svc.image_processors.kimi_k25",
    "Lfm2VlImageProcessor": "tokenizer_svc.image_processors.lfm2_vl",
    "Llama4ImageProcessor": "tokenizer_svc.image_processors.llama4",
    "MiniCPMOcrImageProcessor": "tokenizer_svc.image_processors.minicpm_ocr",
}


def class_named(fields: Mapping[str, Any], name: str, in_own_code: str) -> str:
    """The class that a checkpoint's file names; empty if it names none.

    Args:
        fields: of the file.
        name: the field that has it.
        in_own_code: what the class is in the checkpoint's own code, which is never run, if the file names no other.
    """
    own = (fields.get("auto_map") or {}).get(in_own_code)
    return str(fields.get(name) or (own.rpartition(".")[2] if isinstance(own, str) else ""))


def load_image_processor(folder: Path) -> Any:
    """The image processor of the checkpoint in a folder, by Pillow and NumPy.

    Raises: various exceptions if Transformers cannot load it.
    """
    fields, _ = ImageProcessingMixin.get_image_processor_dict(folder)
    kind = class_named(fields, "image_processor_type", "AutoImageProcessor").removesuffix("Fast")
    if kind in _MODULES:
        return importlib.import_module(_MODULES[kind]).ImageProcessor.from_dict(fields)
    return transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
