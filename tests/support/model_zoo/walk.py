"""Tries out whether a type of model runs here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from quire.errors import StartupError
from tests.support.model_zoo.configurations import MODEL_TYPES, NATIVE, tiny_configuration
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine, tokens
from tests.support.tiny_models import check_greedy

# Longer than the windows, and than a single step can compute.
_PROMPTS = random_prompts(3, 40)
_TOKENS = 8


@dataclass(frozen=True)
class Outcome:
    """How a type runs."""

    way: Literal["native", "Transformers", "refused"]
    reason: str = ""  # why it is refused


def walk(model_type: str, folder: Path) -> Outcome:
    """Runs a tiny model of the type with Transformers' code, and compares its output with that of the library alone.

    Native ones are compared in `test_exactness.py`.

    Args:
        folder: for the model; empty.
    """
    if MODEL_TYPES[model_type] in NATIVE:
        return Outcome("native")
    config = tiny_configuration(model_type)
    config.save_pretrained(folder)
    try:
        # Some are refused because of their configuration alone, before a model has to be made.
        _say(folder)
    except StartupError as error:
        if (reason := _reason(error)) is not None:
            return Outcome("refused", reason)
    reference = _save(config, folder)
    try:
        found = _say(folder)
    except StartupError as error:
        return Outcome("refused", _reason(error) or str(error).removesuffix("."))
    check_greedy(reference, _PROMPTS, found, _TOKENS)
    return Outcome("Transformers")


def _say(folder: Path) -> list[list[int]]:
    with running_engine(folder, max_num_batched_tokens=33, max_model_len=64) as engine:
        return tokens(run(engine, _PROMPTS, replace(GREEDY, max_tokens=_TOKENS)))


def _reason(error: StartupError) -> str | None:
    """The part of the message between the architecture and the reference to the page of all models."""
    _, found, rest = str(error).partition("is not supported: ")
    return rest.removesuffix(". docs/models.md lists what is supported.") if found else None


def _save(config: transformers.PretrainedConfig, folder: Path) -> Path:
    """Saves a model with random weights; returns the folder of the equivalent text model for comparison."""
    torch.manual_seed(0)
    try:
        _randomly(config).save_pretrained(folder)
    except ImportError:  # a package for images or audio is missing
        _randomly(config.get_text_config()).save_pretrained(folder / "text")
        tensors = load_file(folder / "text" / "model.safetensors")
        renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
        save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
        return folder / "text"
    return folder


def _randomly(config: transformers.PretrainedConfig) -> Any:
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
    return model
