"""Finds a model's configuration in any supported format, and applies the user's changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_svc.config_formats.base import ConfigFormat, read_object
from engine_svc.config_formats.changes import changed
from engine_svc.config_formats.internvl import in_transformers_layout
from engine_svc.config_formats.mistral import from_mistral
from engine_svc.config_formats.omni import without_speech
from engine_svc.gguf.config import gguf_config, gguf_weights
from quire.errors import StartupError
from quire.gguf.files import is_gguf, read_gguf
from quire.hub import Hub, Wanted
from quire.model_folder import model_folder
from quire.options.model_form import CONFIG_FORMATS, ModelFormOptions
from quire.registry import registry
from quire.retrievers import as_vision_language_model

FORMATS = registry("--config-format", CONFIG_FORMATS, {
    "hf": ConfigFormat("config.json", without_speech),
    "mistral": ConfigFormat("params.json", from_mistral),
})  # fmt: skip

_MODEL_OPTIMIZER = "hf_quant_config.json"


def read_model_config(folder: Path, form: ModelFormOptions) -> dict[str, Any]:
    """Reads a model's configuration, in the form of config.json.

    Args:
        folder: folder of the model, or its GGUF file, which is then the only source unless --hf-config-path is given.

    Raises:
        StartupError: there is no configuration, or it cannot be read.
    """
    if found := find_model_config(folder, form):
        return found
    files = " nor ".join(FORMATS[name].file for name in _names(form))
    raise StartupError(f"{_place(folder, form)} is not a model folder: it has no {files}.")


def find_model_config(folder: Path, form: ModelFormOptions) -> dict[str, Any]:
    """Like `read_model_config`, but returns an empty dictionary if there is no configuration."""
    place = _place(folder, form)
    found = gguf_config(place) if is_gguf(place) else _in_folder(place, form)
    if not found:
        return {}
    if is_gguf(folder) and place != folder:
        found |= gguf_weights(read_gguf(folder))
    return as_vision_language_model(_checked(folder, changed(found, form)))


def _in_folder(folder: Path, form: ModelFormOptions) -> dict[str, Any]:
    for name in _names(form):
        try:
            found = FORMATS[name].as_huggingface(read_object(folder / FORMATS[name].file))
        except FileNotFoundError:
            continue
        return _with_quantization(in_transformers_layout(found, folder), folder)
    return {}


def _with_quantization(config: dict[str, Any], place: Path) -> dict[str, Any]:
    """Adds the quantization settings that Model Optimizer writes to a separate file."""
    path = place / _MODEL_OPTIMIZER
    if config.get("quantization_config") or not path.is_file():
        return config
    content = read_object(path)
    said = content.get("quantization")
    settings = {**content, **said} if isinstance(said, dict) else content
    return config | {"quantization_config": {"quant_method": "modelopt", **settings}}


def _checked(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    names = config.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise StartupError(f"{folder}: architectures is {names!r}; expected a list of names.")
    text = config.get("text_config")
    if text is not None and not isinstance(text, dict):
        raise StartupError(f"{folder}: text_config is {text!r}; expected a JSON object.")
    return config


def _place(folder: Path, form: ModelFormOptions) -> Path:
    return model_folder(Wanted(form.hf_config_path, patterns=("*.json",)), Hub()) if form.hf_config_path else folder


def _names(form: ModelFormOptions) -> Sequence[str]:
    return tuple(FORMATS) if form.config_format == "auto" else (form.config_format,)
