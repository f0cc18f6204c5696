"""A model's configuration, by the format that it is written in and with the user's changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_svc.config_formats.base import ConfigFormat, read_object
from engine_svc.config_formats.changes import with_rope
from engine_svc.config_formats.mistral import from_mistral
from quire.errors import StartupError
from quire.model_folder import model_folder
from quire.options.model_form import CONFIG_FORMATS, ModelFormOptions
from quire.registry import registry

FORMATS = registry("--config-format", CONFIG_FORMATS, {
    "hf": ConfigFormat("config.json", dict),
    "mistral": ConfigFormat("params.json", from_mistral),
})  # fmt: skip


def read_model_config(folder: Path, form: ModelFormOptions) -> dict[str, Any]:
    """As config.json has it.

    Args:
        folder: of the model.

    Raises:
        StartupError: there is none, or it cannot be read.
    """
    if found := find_model_config(folder, form):
        return found
    files = " nor ".join(FORMATS[name].file for name in _names(form))
    raise StartupError(f"{_place(folder, form)} is no model folder: it has no {files}.")


def find_model_config(folder: Path, form: ModelFormOptions) -> dict[str, Any]:
    """The same; empty where there is none."""
    place = _place(folder, form)
    for name in _names(form):
        try:
            content = read_object(place / FORMATS[name].file)
        except FileNotFoundError:
            continue
        config = with_rope(FORMATS[name].as_huggingface(content), form.rope_scaling, form.rope_theta)
        return config | form.hf_overrides
    return {}


def _place(folder: Path, form: ModelFormOptions) -> Path:
    return model_folder(form.hf_config_path, None, None, ("*.json",)) if form.hf_config_path else folder


def _names(form: ModelFormOptions) -> Sequence[str]:
    return tuple(FORMATS) if form.config_format == "auto" else (form.config_format,)
