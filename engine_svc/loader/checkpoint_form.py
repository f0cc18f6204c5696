"""Whether a checkpoint can take the place of the one that is served: the same model, in tensors of the same form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine_svc.config_formats.registry import read_model_config
from engine_svc.loader.formats.base import CheckpointFormat
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.formats.safetensors_files import opened
from engine_svc.models.registry import config_for, is_ours, takes_media, text_part
from quire.errors import StartupError
from quire.options.engine import EngineOptions

# Fields of config.json that say nothing about the weights, or of which a worker keeps its own.
_OTHERS = frozenset((
    "_name_or_path", "_attn_implementation_autoset", "transformers_version", "use_cache", "dtype", "torch_dtype",
    "bos_token_id", "eos_token_id", "pad_token_id",
))  # fmt: skip
_MOST_SHOWN = 80


@dataclass(frozen=True)
class CheckpointForm:
    """The form of a checkpoint.

    Attributes:
        facts: what its configuration says about the model, by field.
        tensors: dtype and shape of each tensor, such as `BF16 [64, 32]`.
    """

    facts: Mapping[str, Any]
    tensors: Mapping[str, str]

    def is_unread(self, name: str) -> bool:
        """Whether a tensor is not read although trainers may save or send it: the output layer, if it is tied."""
        return bool(self.facts.get("tie_word_embeddings")) and name.endswith("lm_head.weight")

    def difference(self, other: CheckpointForm) -> str:
        """The first difference of another checkpoint, in words; empty if there is none."""
        if found := _difference(self.facts, other.facts):
            return f"config.json: {found} for the served model"
        found = _difference(self.tensors, other.tensors)
        return found and f"{found} in the served checkpoint"


def read_form(folder: Path, options: EngineOptions) -> CheckpointForm:
    """Reads the configuration and the heads of the files of a checkpoint, which must be in safetensors files.

    Raises:
        StartupError: it is in another format or incomplete, or a file cannot be read.
    """
    source = create_format(folder, options.load)
    files = set(source.names().values()) if isinstance(source, CheckpointFormat) else set()
    if not files or any(file.suffix != ".safetensors" for file in files):
        raise StartupError(f"{folder}: only checkpoints in safetensors files can replace each other.")
    facts = _facts(read_model_config(folder, options.form), options)
    tensors = {name: form for file in files for name, form in _tensors(file).items()}
    form = CheckpointForm(facts, tensors)
    return replace(form, tensors={name: each for name, each in tensors.items() if not form.is_unread(name)})


def _facts(config: Mapping[str, Any], options: EngineOptions) -> Mapping[str, Any]:
    """What the weights depend on: the shape as our own families read it, or else all that the configuration says."""
    facts = {"architectures": config.get("architectures"), "quantization_config": config.get("quantization_config")}
    if options.form.model_impl == "transformers" or not is_ours(config):
        return facts | {name: value for name, value in config.items() if name not in _OTHERS}
    shape = config_for(text_part(config))
    facts |= {field.name: getattr(shape, field.name) for field in dataclasses.fields(shape)}
    encoders = {name: value for name, value in config.items() if isinstance(value, dict) and name != "text_config"}
    return facts | encoders if takes_media(config) else facts


def _tensors(file: Path) -> Mapping[str, str]:
    """The form of each tensor. The reader checks that the file is complete."""
    with opened(file) as reader:
        slices = {name: reader.get_slice(name) for name in reader.keys()}  # noqa: SIM118  (no mapping)
        return {name: f"{each.get_dtype()} {each.get_shape()}" for name, each in slices.items()}


def _difference(served: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first difference, such as `hidden_size is 64, but 32`; empty if there is none."""
    for name in (*served, *other):
        if served.get(name) != other.get(name):
            return f"{name} is {_told(other.get(name))}, but {_told(served.get(name))}"
    return ""


def _told(value: object) -> str:
    told = "missing" if value is None else str(value)
    return told if len(told) <= _MOST_SHOWN else f"{told[:_MOST_SHOWN]}…"
