"""Chooses the device that a rank runs on."""

from __future__ import annotations

import torch

from quire.errors import StartupError


def choose_device(name: str, index: int) -> torch.device:
    """A rank's device; `auto` means a GPU if there is one, else the CPU.

    Args:
        index: index of the GPU among those visible to this process.

    Raises:
        StartupError: there are GPUs, or cuda is requested, but there is none with this index.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    if index >= count:
        raise StartupError(f"--device {name}: a rank needs GPU {index} for itself, but this machine has {count}.")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
