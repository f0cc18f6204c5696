"""Reads the sentence-transformers files in a model's folder, as data only; no code from them is run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_svc.pooling_form.architecture import MODULES_FILE
from quire.errors import StartupError

_MODES = {
    "pooling_mode_cls_token": "CLS", "pooling_mode_mean_tokens": "MEAN", "pooling_mode_lasttoken": "LAST",
    "pooling_mode_max_tokens": "max", "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}  # fmt: skip
_NAMED = {"cls": "CLS", "mean": "MEAN", "lasttoken": "LAST", "last": "LAST"}
_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid")
# Kinds of modules, in the only supported order.
_ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
_MAX_PROMPTS, _MAX_PROMPT_LENGTH = 256, 4096
_NO_LENGTH = 10**9


@dataclass(frozen=True)
class Dense:
    """A linear layer after pooling, or on each token if nothing is pooled."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str  # name of a class in torch.nn


@dataclass(frozen=True)
class SentenceTransformers:
    """The settings from a folder's modules."""

    pooling: str | None = None  # CLS, MEAN or LAST; None means nothing is pooled
    dense: tuple[Dense, ...] = ()
    normalizes: bool = False
    max_length: int | None = None  # limit in tokens
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str = ""


def read_sentence_transformers(folder: Path) -> SentenceTransformers | None:
    """Reads a folder's settings; None if it has no sentence-transformers files.

    Raises:
        StartupError: the files cannot be read, or ask for something unsupported.
    """
    modules = _read(folder / MODULES_FILE) if folder.is_dir() else None
    if modules is None:
        return None
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise StartupError(f"{folder / MODULES_FILE} is not a list of modules.")
    pooling, dense, normalizes = None, list[Dense](), False
    prompts = _object(folder / "config_sentence_transformers.json")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    for kind, module in zip(kinds, modules, strict=True):
        place = _inside(folder, module.get("path") or "")
        if kind == "Transformer" and place != folder:
            raise StartupError(f"{folder / MODULES_FILE}: the model is in {place.name}; serve that folder.")
        if kind == "Pooling":
            pooling = _pooling(place, prompts=bool(prompts.get("prompts")))
        elif kind == "Dense":
            is_own = str(module["type"]).startswith("sentence_transformers.")
            dense.append(_dense(place, pools="Pooling" in kinds, default="Tanh" if is_own else "Identity"))
        elif kind == "Normalize":
            normalizes = True
        elif kind != "Transformer":
            raise StartupError(f"{folder / MODULES_FILE}: the module {kind or module!r} is not supported.")
    if kinds != sorted(kinds, key=_ORDER.index):
        raise StartupError(
            f"{folder / MODULES_FILE}: the order {', '.join(kinds)} is not supported; it must be {', '.join(_ORDER)}."
        )
    return SentenceTransformers(
        pooling, tuple(dense), normalizes, _max_length(folder),
        _prompts(folder, prompts.get("prompts") or {}), prompts.get("default_prompt_name") or "",
    )  # fmt: skip


def _inside(folder: Path, path: str) -> Path:
    """The folder of a module.

    Raises:
        StartupError: the module's path leads out of the model's folder.
    """
    place = folder / path
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise StartupError(f"{folder / MODULES_FILE}: the path {path!r} leads out of the folder.")
    return place


def _pooling(place: Path, prompts: bool) -> str:
    config = _object(place / "config.json")
    if prompts and not config.get("include_prompt", True):
        raise StartupError(
            f"{place / 'config.json'}: include_prompt is false, which is not supported for a model with prompts: "
            "their tokens would be pooled too. Set it to true, or remove the prompts from "
            "config_sentence_transformers.json."
        )
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else [mode for key, mode in _MODES.items() if config.get(key)]
    modes = [_NAMED.get(mode, mode) for mode in modes]
    if len(modes) != 1 or modes[0] not in ("CLS", "MEAN", "LAST"):
        raise StartupError(
            f"{place}: pooling by {' and '.join(modes) or 'nothing'} is not supported; it must be by one of cls, "
            'mean and last token. --pooler-config {"pooling_type": …} cannot replace what the model was trained with.'
        )
    return modes[0]


def _dense(place: Path, pools: bool, default: str) -> Dense:
    """
    Args:
        pools: the layer is applied to pooled vectors, not to tokens.
        default: activation if the configuration has none; PyLate's differs from that of sentence-transformers.
    """
    config = _object(place / "config.json")
    name = str(config.get("activation_function") or default).rpartition(".")[2]
    if config.get("use_residual"):
        raise StartupError(f"{place / 'config.json'}: use_residual is not supported.")
    for key in ("module_input_name", "module_output_name") if pools else ():
        if config.get(key) not in (None, "sentence_embedding"):
            raise StartupError(
                f"{place / 'config.json'}: {key} is {config[key]!r}; only sentence_embedding is supported."
            )
    if name not in _ACTIVATIONS:
        raise StartupError(
            f"{place}: the activation {name} is not supported; it must be one of {', '.join(_ACTIVATIONS)}."
        )
    try:
        return Dense(
            place, int(config["in_features"]), int(config["out_features"]), bool(config.get("bias", True)), name
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StartupError(f"{place / 'config.json'} lacks in_features or out_features.") from error


def _max_length(folder: Path) -> int | None:
    """The limit in tokens. Newer folders have it with the tokenizer, where a huge number means no limit."""
    found = _object(folder / "sentence_bert_config.json").get("max_seq_length")
    if found is None:
        found = _object(folder / "tokenizer_config.json").get("model_max_length")
    return int(found) if isinstance(found, int | float) and 0 < found < _NO_LENGTH else None


def _prompts(folder: Path, prompts: Any) -> Mapping[str, str]:
    whole = isinstance(prompts, dict) and all(
        isinstance(name, str) and isinstance(text, str) and len(text) <= _MAX_PROMPT_LENGTH
        for name, text in prompts.items()
    )
    if not whole or len(prompts) > _MAX_PROMPTS:
        raise StartupError(f"{folder}: prompts in config_sentence_transformers.json must map names to texts.")
    return dict(prompts)


def _object(file: Path) -> dict[str, Any]:
    found = _read(file)
    if found is not None and not isinstance(found, dict):
        raise StartupError(f"{file} is not a JSON object.")
    return found or {}


def _read(file: Path) -> Any:
    """The content of a JSON file; None if there is no such file."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StartupError(f"{file} cannot be read: {error}.") from error
