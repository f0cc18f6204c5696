"""`--load-format fastsafetensors`: safetensors read by the package of that name, which copies whole files at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine_svc.loader.formats.safetensors_files import Safetensors, failures_told
from quire.extras import needed

if TYPE_CHECKING:
    from engine_svc.layers.parameter import TensorSlice


class FastSafetensors(Safetensors):
    """Reads a whole file at a time, to the GPU if there is one."""

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """See TensorSource.tensors."""
        with needed("--load-format fastsafetensors", "fastsafetensors", "fastsafetensors"):
            from fastsafetensors import fastsafe_open
        import torch

        from engine_svc.quantization.source import HeldTensor

        device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
        self.names()  # checks that all files are complete
        for file in self.files():
            with failures_told(file), fastsafe_open([str(file)], device=device, nogds=device == "cpu") as opened:
                for name in opened.keys():  # noqa: SIM118  (no mapping)
                    yield name, HeldTensor(opened.get_tensor(name))
