"""Sampling defaults and end-of-sequence tokens, from the model's files and from the options."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.bounds import Bound
from quire.errors import InvalidRequest, StartupError
from quire.options.generation import GenerationOptions
from quire.sampling import MODEL_DEFAULTS, SAMPLING_BOUNDS

# Hugging Face's name -> ours, for the fields used as sampling defaults.
_FIELDS = {name: name for name in MODEL_DEFAULTS} | {"max_new_tokens": "max_tokens"}
_WHOLE = ("top_k", "max_tokens")
# An output limit of 0 would leave every answer empty.
_BOUNDS = {**SAMPLING_BOUNDS, "max_tokens": Bound(1, SAMPLING_BOUNDS["max_tokens"].maximum)}


@dataclass(frozen=True)
class GenerationDefaults:
    """Sampling fields that differ from the neutral defaults, by the names of quire.v1.SamplingParams; and stop tokens.

    All fields are defaults only, except max_tokens, which is also the maximum for requests.
    """

    sampling: Mapping[str, float | int]
    eos_token_ids: frozenset[int]


def read_generation_defaults(folder: Path, options: GenerationOptions, config: Mapping[str, Any]) -> GenerationDefaults:
    """Reads generation_config.json.

    Args:
        folder: folder of the model. A missing file counts as empty.
        config: configuration of the model, which may also name end-of-sequence tokens.

    Raises:
        StartupError: --generation-config names a folder without the file; a file is not JSON; a default is out
            of bounds; eos_token_id is invalid.
    """
    own = _read_json(folder / "generation_config.json")
    chosen = _chosen(own, options.generation_config)
    override = options.override_generation_config
    if "eos_token_id" in override:
        eos = _token_ids(override["eos_token_id"])
    else:
        nested = config.get("text_config")
        sources = (own, chosen, config, nested if isinstance(nested, dict) else {})
        eos = frozenset[int]().union(*(_token_ids(source.get("eos_token_id")) for source in sources))
    return GenerationDefaults(_sampling({**chosen, **override}), eos)


def _chosen(own: dict[str, Any], place: str) -> dict[str, Any]:
    """The generation config that --generation-config selects."""
    if place == "auto":
        return own
    if place == "vllm":
        return {}
    file = Path(place) / "generation_config.json"
    if not file.is_file():
        raise StartupError(
            f"--generation-config {place}: there is no generation_config.json there; name another folder, or use auto "
            "or vllm."
        )
    return _read_json(file)


def _sampling(fields: Mapping[str, Any]) -> dict[str, float | int]:
    found: dict[str, float | int] = {}
    for theirs, ours in _FIELDS.items():
        value = fields.get(theirs)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise StartupError(f"generation config: {theirs} is {value!r}, which is not a number.")
        value = max(0, int(value)) if ours in _WHOLE else float(value)  # top_k -1 means all, which is 0 here
        try:
            _BOUNDS[ours].check(theirs, value)
        except InvalidRequest as error:
            raise StartupError(f"generation config: {error.message}") from error
        found[ours] = value
    return found


def _token_ids(value: Any) -> frozenset[int]:
    """Token ids from a single id or a list of them; negative ids mean none.

    Raises:
        StartupError: the value is neither.
    """
    found = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int for token in found):
        raise StartupError(f"eos_token_id is {value!r}; expected a token id, or a list of token ids.")
    return frozenset(token for token in found if token >= 0)


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise StartupError(f"{file} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise StartupError(f"{file} is not a JSON object.")
    return content
