"""Which device a rank runs on."""

from __future__ import annotations

import torch

from quire.errors import StartupError


def choose_device(name: str, rank: int) -> torch.device:
    """The rank's device; `auto` is the GPU where there is one.

    Raises:
        StartupError: cuda is asked for, and there are not enough GPUs.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    if rank >= count:
        raise StartupError(f"--device {name}: rank {rank} needs a GPU of its own, and this machine has {count}.")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)
