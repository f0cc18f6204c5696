"""The CPU backend that reads the cache where it lies, by the C++ kernels."""

from __future__ import annotations

import torch

from engine_svc.attention.base import AttentionOptions, AttentionShape
from engine_svc.attention.cpu import CpuBackend, CpuPrepared, Decode
from engine_svc.native.library import Kernels
from quire.errors import StartupError

_HEAD_DIMS = (16, 32, 64, 80, 96, 128, 256)
_MOST_GROUP = 16


def suits(shape: AttentionShape, kernels: Kernels | None) -> bool:
    """Whether the kernels can run this shape here."""
    return (
        shape.dtype == shape.stored == torch.bfloat16
        and shape.head_dim in _HEAD_DIMS
        and shape.num_heads // shape.num_kv_heads <= _MOST_GROUP
        and kernels is not None
        and hasattr(kernels, "paged_decode")
    )


class NativeBackend(CpuBackend):
    """The same cache as CpuBackend's."""

    name = "native"

    def __init__(self, shape: AttentionShape, kernels: Kernels | None = None) -> None:
        """
        Raises:
            StartupError: the kernels cannot run this shape here.
        """
        super().__init__(shape, kernels)
        if kernels is None or not suits(shape, kernels):
            raise StartupError(
                "--attention-backend native needs a CPU with AVX512-BF16, a C++ compiler, bfloat16 (of the cache too), "
                f"and heads of {', '.join(map(str, _HEAD_DIMS))} values; leave it at auto, or choose cpu."
            )
        self._kernels = kernels

    def write(self, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """See CpuBackend.write."""
        tokens, kv_heads, dim = key.shape
        self._kernels.write_cache(
            key.data_ptr(), value.data_ptr(), key.stride(0), value.stride(0), slot_mapping.data_ptr(),
            cache.data_ptr(), cache[-1].data_ptr(), cache.stride(1), tokens, kv_heads, dim, torch.get_num_threads(),
        )  # fmt: skip

    def attend_decode(
        self, query: torch.Tensor, cache: torch.Tensor, decode: Decode, options: AttentionOptions, output: torch.Tensor
    ) -> None:
        """See CpuBackend.attend_decode."""
        shape, table = self.shape, decode.block_table
        sinks = None if options.sinks is None else options.sinks.float()
        self._kernels.paged_decode(
            query.data_ptr(), query.stride(0), cache.data_ptr(), cache[-1].data_ptr(), cache.stride(1),
            table.data_ptr(), table.stride(0), decode.seq_lens.data_ptr(),
            None if decode.rows is None else decode.rows.data_ptr(), output.data_ptr(), len(table), shape.num_heads,
            shape.num_kv_heads, shape.head_dim, shape.block_size, options.scale,
            options.sliding_window or 0, options.softcap or 0.0,
            None if sinks is None else sinks.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip

    def attend_prefill(
        self,
        query: torch.Tensor,
        cache: torch.Tensor,
        prepared: CpuPrepared,
        options: AttentionOptions,
        output: torch.Tensor,
    ) -> None:
        """See CpuBackend.attend_prefill."""
        shape, metadata = self.shape, prepared.metadata
        sequences = torch.tensor(prepared.prefilling, dtype=torch.int32)
        sinks = None if options.sinks is None else options.sinks.float()
        self._kernels.paged_prefill(
            query.data_ptr(), query.stride(0), cache.data_ptr(), cache[-1].data_ptr(), cache.stride(1),
            metadata.block_table.data_ptr(), metadata.block_table.stride(0), metadata.query_start_loc.data_ptr(),
            metadata.seq_lens.data_ptr(), sequences.data_ptr(), len(sequences), output.data_ptr(), shape.num_heads,
            shape.num_kv_heads, shape.head_dim, shape.block_size, options.scale,
            options.sliding_window or 0, options.softcap or 0.0,
            None if sinks is None else sinks.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
