"""Changes to a model's configuration by options: `--rope-scaling`, `--rope-theta` and `--hf-overrides`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import StartupError
from quire.options.model_form import ModelFormOptions

# Fields that both a configuration as a whole and the text model in it have.
_OF_EACH = ("architectures", "model_type")
_ROTARY = ("rope_scaling", "rope_theta")  # as Transformers 4 names them


def changed(config: dict[str, Any], form: ModelFormOptions) -> dict[str, Any]:
    """Applies the options to a configuration; for multimodal models, to the configuration of the text model.

    Raises:
        StartupError: rotary options are given, and the model's layers have different rotary settings.
    """
    overrides, text = form.hf_overrides, config.get("text_config")
    if "torch_dtype" in overrides:  # as Transformers 4 names it
        overrides = {"dtype": overrides["torch_dtype"], **overrides}
    if not isinstance(text, dict):
        return _overridden(with_rope(config, form.rope_scaling, form.rope_theta), overrides)
    known = {*text, *_ROTARY}
    within = {name: value for name, value in overrides.items() if name in known and name not in _OF_EACH}
    given = overrides.get("text_config")
    if isinstance(given, Mapping):
        within.update(given)
    text = _overridden(with_rope(text, form.rope_scaling, form.rope_theta), within)
    return {**config, **overrides, "text_config": text}


def _overridden(config: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides fields; rotary fields of Transformers 4 change the corresponding field of Transformers 5."""
    if config.get("rope_parameters") and "rope_parameters" not in overrides:
        scaling = overrides.get("rope_scaling", {})
        chosen = {"rope_type": "default"} if scaling is None else scaling
        config = with_rope(config, chosen, overrides.get("rope_theta"))
        overrides = {name: value for name, value in overrides.items() if name not in _ROTARY}
    return {**config, **overrides}


def with_rope(config: dict[str, Any], scaling: Mapping[str, Any], theta: float | None) -> dict[str, Any]:
    """The configuration with changed rotary settings, in the layout of Transformers 5; unchanged if none are given.

    Args:
        scaling: such as {"rope_type": "dynamic", "factor": 2.0}; replaces the model's own.
        theta: the rotary base; None keeps the model's.

    Raises:
        StartupError: the model's layers have different rotary settings.
    """
    if not scaling and theta is None:
        return config
    own = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in own.values()):
        raise StartupError(
            "--rope-scaling and --rope-theta apply to all layers, but this model's layers have their own rotary "
            "settings: change rope_parameters with --hf-overrides."
        )
    chosen = {**scaling} if scaling else {**own}
    chosen.setdefault("rope_type", chosen.pop("type", "default"))
    chosen["rope_theta"] = theta or scaling.get("rope_theta") or own.get("rope_theta") or config.get("rope_theta", 1e4)
    if "partial_rotary_factor" in own:  # part of the architecture, not of the scaling
        chosen.setdefault("partial_rotary_factor", own["partial_rotary_factor"])
    left = {name: value for name, value in config.items() if name not in _ROTARY}
    return left | {"rope_parameters": chosen}
