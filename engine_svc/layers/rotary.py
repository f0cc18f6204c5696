"""Rotary position embedding (Su et al. 2021) and its scalings, as a table of cosines and sines of every position."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from quire.errors import StartupError

_ROWS = 1 << 15  # of the table that are computed at a time: the models with the longest contexts have ten million
# Where tokens have several: those of videos go on with time, maybe beyond the number of the sequence's tokens.
POSITIONS_PER_TOKEN = 2

# (parameters, head_dim, max_position_embeddings) → (inverse frequencies [head_dim / 2], factor on cosine and sine)
Scaling = Callable[[Mapping[str, Any], int, int], tuple[torch.Tensor, float]]


def _plain(base: float, dim: int) -> torch.Tensor:
    return 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))


def _default(parameters: Mapping[str, Any], dim: int, max_position: int) -> tuple[torch.Tensor, float]:
    return _plain(parameters["rope_theta"], dim), 1.0


def _none(parameters: Mapping[str, Any], dim: int, max_position: int) -> tuple[torch.Tensor, float]:
    """For layers without positions that go through rotation nevertheless: all angles are zero."""
    return torch.zeros(dim // 2), 1.0


def _linear(parameters: Mapping[str, Any], dim: int, max_position: int) -> tuple[torch.Tensor, float]:
    return _plain(parameters["rope_theta"], dim) / parameters["factor"], 1.0


def _proportional(parameters: Mapping[str, Any], dim: int, max_position: int) -> tuple[torch.Tensor, float]:
    """Frequencies as if all values were rotated, but only the first part is used; the rest is zero (Gemma 4)."""
    rotated = int(parameters.get("partial_rotary_factor", 1.0) * dim // 2)
    plain = _plain(parameters["rope_theta"], dim) / parameters.get("factor", 1.0)
    return torch.where(torch.arange(dim // 2) < rotated, plain, 0.0), 1.0


def _llama3(parameters: Mapping[str, Any], dim: int, max_position: int) -> tuple[torch.Tensor, float]:
    """Long wavelengths are stretched, short ones kept, and those in between blended (Llama 3.1)."""
    plain = _plain(parameters["rope_theta"], dim)
    original = parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    wavelength = 2 * math.pi / plain
    smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * plain / parameters["factor"] + smooth * plain, 1.0


def _yarn(parameters: Mapping[str, Any], dim: int, max_position: int) -> tuple[torch.Tensor, float]:
    """YaRN (Peng et al. 2023): interpolation for low frequencies, extrapolation for high ones, a ramp between."""
    base, factor = parameters["rope_theta"], parameters["factor"]
    original = parameters.get("original_max_position_embeddings") or max_position
    low = _yarn_dimension(parameters.get("beta_fast") or 32, dim, base, original)
    high = _yarn_dimension(parameters.get("beta_slow") or 1, dim, base, original)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    plain = _plain(base, dim)
    return plain / factor * ramp + plain * (1 - ramp), _yarn_attention_factor(parameters, factor)


def _yarn_dimension(rotations: float, dim: int, base: float, original: int) -> float:
    """The dimension that rotates this often over the original length."""
    return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))


def _yarn_attention_factor(parameters: Mapping[str, Any], factor: float) -> float:
    if parameters.get("attention_factor") is not None:
        return float(parameters["attention_factor"])

    def scale(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    mscale, all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return scale(mscale) / scale(all_dim) if mscale and all_dim else scale(1.0)


def _longrope(parameters: Mapping[str, Any], dim: int, max_position: int, length: int) -> tuple[torch.Tensor, float]:
    """LongRoPE (Ding et al. 2024): a factor for each frequency, one list for short contexts and one for long ones.

    The longest sequence that is served decides which list is used. Transformers decides for each sequence, but keys
    that are already cached here cannot be rotated again.
    """
    original = parameters["original_max_position_embeddings"]
    stretch = parameters.get("factor") or max_position / original
    kind = "long" if length > original else "short"
    attention = parameters.get("attention_factor", parameters.get(f"{kind}_mscale"))
    if attention is None:
        attention = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    factors = torch.tensor(parameters[f"{kind}_factor"])
    return _plain(parameters["rope_theta"], dim) / factors, float(attention)


# `dynamic` starts like `default`; `rotary_table` changes it past the trained length.
SCALINGS: dict[str, Scaling] = {
    "default": _default, "none": _none, "linear": _linear, "dynamic": _default, "llama3": _llama3, "yarn": _yarn,
    "proportional": _proportional,
}  # fmt: skip


def rotary_table(
    parameters: Mapping[str, Any], rotary_dim: int, max_position: int, length: int, dtype: torch.dtype
) -> torch.Tensor:
    """Cosines and sines of every position.

    With dynamic NTK scaling, Transformers stretches the base with the length of the sequence so far and does not change
    keys that are already cached. Here, each position past the trained length is rotated as if the sequence ended
    there: the same as Transformers while decoding, and independent of how a prompt is split into chunks.

    Args:
        parameters: `rope_parameters` of the configuration, with rope_type and rope_theta.
        max_position: number of positions the model was trained for.
        length: number of positions in the table.

    Returns:
        [length, 2, rotary_dim / 2]: cosines, then sines.

    Raises:
        StartupError: the type of scaling is not supported, or its parameters are incomplete or invalid.
    """
    kind = parameters.get("rope_type", "default")
    if kind != "longrope" and kind not in SCALINGS:
        raise StartupError(f"rope_type {kind!r} is not supported; supported are longrope, {', '.join(SCALINGS)}.")
    try:
        if kind == "longrope":
            frequencies, factor = _longrope(parameters, rotary_dim, max_position, length)
        else:
            frequencies, factor = SCALINGS[kind](parameters, rotary_dim, max_position)
    except KeyError as error:
        raise StartupError(f"The model's rope_parameters lack {error}, which {kind} needs.") from error
    except (ZeroDivisionError, ValueError) as error:
        raise StartupError(f"The model's rope_parameters {dict(parameters)} are invalid: {error}.") from error
    if not (frequencies.isfinite().all() and math.isfinite(factor)):
        raise StartupError(f"The model's rope_parameters {dict(parameters)} produce angles that are not numbers.")
    table = torch.empty((length, 2, len(frequencies)), dtype=dtype)
    for first in range(0, length, _ROWS):
        rows = table[first : first + _ROWS]
        positions = torch.arange(first, first + len(rows))
        angles = positions.float()[:, None] * frequencies[None, :]
        if kind == "dynamic" and first + len(rows) > max_position:
            late = max(0, max_position - first)
            angles[late:] = _dynamic_angles(parameters, rotary_dim, max_position, positions[late:])
        rows.copy_(torch.stack((angles.cos(), angles.sin()), dim=1) * factor)
    return table


def rotary_components(parameters: Mapping[str, Any], rotary_dim: int) -> torch.Tensor | None:
    """For models whose tokens have several positions (see media/rotary_positions.py): which one each frequency uses.

    Returns:
        int64 [rotary_dim / 2] of 0 to 2, or to 3 for HunYuan; None for models whose tokens have one position.

    Raises:
        StartupError: the sections do not add up to the number of frequencies.
    """
    section = parameters.get("mrope_section")
    if section is None:
        return None
    if sum(section) != rotary_dim // 2:
        raise StartupError(f"The model's mrope_section {section} does not add up to {rotary_dim // 2} frequencies.")
    if not parameters.get("mrope_interleaved"):
        return torch.repeat_interleave(torch.arange(len(section)), torch.tensor(section))
    found = torch.zeros(rotary_dim // 2, dtype=torch.int64)
    for component in (1, 2):  # in turn, as far as the sections reach; the first one has the rest
        found[component : 3 * section[component] : 3] = component
    return found


def _dynamic_angles(
    parameters: Mapping[str, Any], dim: int, max_position: int, positions: torch.Tensor
) -> torch.Tensor:
    factor = parameters["factor"]
    stretched = (factor * (positions.double() + 1) / max_position - (factor - 1)) ** (dim / (dim - 2))
    bases = (parameters["rope_theta"] * stretched).float()
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    return positions.float()[:, None] / bases[:, None] ** exponents[None, :]
