"""Device tensors whose memory is freed, and later allocated again with its previous contents."""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch


class OffloadedTensors:
    """The contents of some tensors, kept in host memory while their device memory is freed.

    The tensor objects and all views of them remain; only their storage is gone until `restore`. Until then, they must
    not be read.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        """
        Args:
            tensors: tensors of one device; of several that share a storage, one is enough.
        """
        storages = {each.data_ptr(): each for each in map(torch.Tensor.untyped_storage, tensors) if each.nbytes()}
        self._kept: list[tuple[torch.UntypedStorage, torch.Tensor]] = []
        for storage in storages.values():
            content = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            kept = torch.empty(len(content), dtype=torch.uint8, pin_memory=content.is_cuda)
            self._kept.append((storage, kept.copy_(content)))
        for storage, _ in self._kept:
            storage.resize_(0)

    @classmethod
    def of_device(cls, device: torch.device) -> OffloadedTensors:
        """Offloads all tensors that this process has on a GPU: weights and buffers."""
        return cls(each for each in gc.get_objects() if isinstance(each, torch.Tensor) and each.device == device)

    @property
    def num_bytes(self) -> int:
        """Bytes kept in host memory."""
        return sum(kept.nbytes for _, kept in self._kept)

    def restore(self) -> None:
        """Moves everything back to the device, possibly to other addresses.

        Raises:
            torch.OutOfMemoryError: the memory is in use by others; everything stays in host memory.
        """
        try:
            for storage, kept in self._kept:
                storage.resize_(kept.nbytes)
                torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).copy_(kept)
        except torch.OutOfMemoryError:
            for storage, _ in self._kept:
                storage.resize_(0)
            raise
        self._kept = []
