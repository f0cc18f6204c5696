"""`--rope-scaling` and `--rope-theta`: how positions are rotated, in place of what the model's configuration says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import StartupError


def with_rope(config: dict[str, Any], scaling: Mapping[str, Any], theta: float | None) -> dict[str, Any]:
    """The configuration with other rotary settings, in the layout of Transformers 5; as it was where none are given.

    Args:
        scaling: such as {"rope_type": "dynamic", "factor": 2.0}; takes the place of the model's own.
        theta: the base.

    Raises:
        StartupError: the model's layers have settings of their own.
    """
    if not scaling and theta is None:
        return config
    own = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in own.values()):
        raise StartupError(
            "--rope-scaling and --rope-theta are for all layers, and those of this model have rotary settings of their "
            "own: change rope_parameters with --hf-overrides."
        )
    chosen = {**scaling} if scaling else {**own}
    chosen.setdefault("rope_type", chosen.pop("type", "default"))
    chosen["rope_theta"] = theta or scaling.get("rope_theta") or own.get("rope_theta") or config.get("rope_theta", 1e4)
    if "partial_rotary_factor" in own:  # which is the model's form, and no scaling
        chosen.setdefault("partial_rotary_factor", own["partial_rotary_factor"])
    left = {name: value for name, value in config.items() if name not in ("rope_scaling", "rope_theta")}
    return left | {"rope_parameters": chosen}
