"""Translates vLLM's `--compilation-config`: keys with a counterpart here become options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from quire.options.nearest import nearest

FLAG = "--compilation-config"
_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
_WITHOUT_EFFECT = (
    "level", "mode", "debug_dump_path", "cache_dir", "backend", "custom_ops", "splitting_ops", "use_inductor",
    "compile_sizes", "inductor_compile_config", "inductor_passes", "cudagraph_num_of_warmups", "cudagraph_copy_inputs",
    "full_cuda_graph", "local_cache_dir", "pass_config",
)  # fmt: skip
_KEYS = (*_WITHOUT_EFFECT, "use_cudagraph", "cudagraph_mode", "cudagraph_capture_sizes", "max_capture_size")


def as_options(text: str) -> tuple[list[str], list[str]]:
    """Returns (equivalent arguments, names of the keys without effect).

    Raises:
        click.UsageError: it is neither an object nor a level, or has an unknown key or a value of another type.
    """
    try:
        config = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{FLAG} {text!r} is neither JSON nor a level: {error}.") from error
    config = {"level": config} if isinstance(config, int) else config
    if not isinstance(config, dict):
        raise click.UsageError(f"{FLAG} {text!r} is neither a JSON object nor a level, such as -O3.")
    for key in config:
        if key not in _KEYS:
            raise click.UsageError(f"{FLAG}: {key} is not known.{nearest(key, _KEYS)} Known keys: {', '.join(_KEYS)}.")
    return list(_arguments(config)), [key for key in config if key in _WITHOUT_EFFECT]


def _arguments(config: dict[str, Any]) -> Iterator[str]:
    mode = config.get("cudagraph_mode")
    if mode is not None and str(mode).upper() not in _MODES:
        raise click.UsageError(f"{FLAG}: cudagraph_mode {mode!r} is not one of {', '.join(_MODES)}.")
    if config.get("use_cudagraph") is False or (str(mode).upper() == "NONE" and mode is not None):
        yield "--enforce-eager"
    sizes = config.get("cudagraph_capture_sizes") or config.get("max_capture_size")
    if sizes:
        sizes = sizes if isinstance(sizes, list) else [sizes]
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise click.UsageError(f"{FLAG}: sizes must be integers of at least 1, not {sizes!r}.")
        yield from ("--cuda-graph-sizes", json.dumps(sizes))
