"""Which device a rank runs on."""

from __future__ import annotations

import torch

from quire.errors import StartupError


def choose_device(name: str, index: int) -> torch.device:
    """A rank's device; `auto` is the GPU where there is one.

    Args:
        index: of the GPUs that this process sees.

    Raises:
        StartupError: cuda is asked for, and there are not enough GPUs.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    if index >= count:
        raise StartupError(f"--device {name}: a rank needs GPU {index} for its own, and there are {count} here.")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
