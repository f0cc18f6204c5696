"""Whole checkpoints, for models that the Transformers library loads."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine_svc.loader.formats.base import CheckpointFormat, LoadFormat
from engine_svc.loader.formats.safetensors_files import Safetensors


def all_tensors(
    source: LoadFormat, leaves_out: Callable[[str], bool] = lambda _: False, prefix: str = ""
) -> dict[str, torch.Tensor] | None:
    """All tensors of a checkpoint. None for safetensors, which Transformers reads itself, incrementally.

    Args:
        leaves_out: whether the tensor of a name is left out.
        prefix: removed from names; safetensors in which names begin with it are read here, too.

    Raises:
        StartupError: a file is missing or broken.
    """
    assert isinstance(source, CheckpointFormat)
    names = source.names()  # which checks that all files are complete
    if type(source) is Safetensors and not (prefix and any(name.startswith(prefix) for name in names)):
        return None
    return {name.removeprefix(prefix): found[...].clone() for name, found in source.tensors() if not leaves_out(name)}
