"""Several tensors packed into one copy are unpacked unchanged, aligned as kernels expect."""

from __future__ import annotations

import numpy as np
import torch

from engine_svc.transfer import pack, to_device_together, unpack

ARRAYS = [
    np.arange(7, dtype=np.int32), np.array([True, False, True]), np.zeros((0, 3), np.int64),
    np.arange(-6, 6, dtype=np.int64).reshape(4, 3), np.arange(5, dtype=np.float32),
]  # fmt: skip


def test_what_is_packed_is_unpacked() -> None:
    tensors = [torch.as_tensor(each) for each in ARRAYS]
    packed = pack(tensors)
    found = unpack(packed, tensors)
    for part, tensor in zip(found, tensors, strict=True):
        assert part.dtype == tensor.dtype
        assert part.equal(tensor)
        assert not tensor.numel() or (part.data_ptr() - packed.data_ptr()) % 16 == 0


def test_on_a_cpu_nothing_is_copied() -> None:
    for part, array in zip(to_device_together(ARRAYS, torch.device("cpu")), ARRAYS, strict=True):
        assert np.shares_memory(part.numpy(), array) or not array.size
