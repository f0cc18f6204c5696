"""How close attention is to this machine's limits: `python -m benchmarks.attention --cpu-kernels avx2`.

Measures one layer of the 0.6B shape, including writing its new keys and values. The floor of decode is the time to read
the sequences' keys and values from memory, shared ones once; therefore more layers take turns than any processor cache
holds. The floor of a prompt is the operations of its causal half, at the rate of the best product of a large matrix
with the same number of rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.machine import heading
from benchmarks.rates import Form, measure_machine
from benchmarks.timing import RECORDED_CALLS, best_seconds
from engine_svc.attention.base import AttentionBackend, AttentionMetadata, AttentionOptions, AttentionShape
from engine_svc.attention.registry import create_backend
from engine_svc.native.library import choose_kernels
from quire.options.kernels import CPU_LEVELS

_HEADS, _KV_HEADS, _DIM = 16, 8, 128
_BLOCK_SIZE = 64 if torch.cuda.is_available() else 16  # as in the engine
_DECODES = [(sequences, context, 0) for context in (128, 2048, 16384) for sequences in (1, 8, 32)]
_DECODES += [(sequences, 2048, 1920) for sequences in (8, 32)]
_PROMPTS = ((256, 256), (4096, 4096), (32, 16384), (256, 16384))  # new tokens, and all
_CACHE_BYTES = 2**29


@dataclass(frozen=True)
class Case:
    """A number of sequences, each with a number of new tokens at the end of its context."""

    sequences: int
    new: int
    context: int
    shared: int = 0  # positions of the context that are in the same blocks for all sequences

    @property
    def name(self) -> str:
        if self.new > 1:
            return f"prompt of {self.new}" + f" behind {self.context - self.new}" * (self.context > self.new)
        return f"decode of {self.sequences} at {self.context}" + f", {self.shared} shared" * bool(self.shared)

    @property
    def operations(self) -> int:
        """Operations of both products: each query attends to the keys up to its own."""
        pairs = self.sequences * self.new * (2 * self.context - self.new + 1) // 2
        return 4 * _HEADS * _DIM * pairs

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Size of the keys and values of one layer."""
        positions = self.sequences * (self.context - self.shared) + self.shared
        return 2 * _KV_HEADS * _DIM * int(dtype.itemsize) * positions

    def metadata(self, device: torch.device) -> AttentionMetadata:
        """Metadata of the case, with blocks in random order."""
        width = -(-self.context // _BLOCK_SIZE)
        table = torch.randperm(self.sequences * width).int().view(self.sequences, width)
        table[:, : self.shared // _BLOCK_SIZE] = table[0, : self.shared // _BLOCK_SIZE]
        positions = torch.arange(self.context - self.new, self.context)
        slots = table[:, positions // _BLOCK_SIZE].long() * _BLOCK_SIZE + positions % _BLOCK_SIZE
        lengths = [self.context] * self.sequences
        return AttentionMetadata(
            (torch.arange(self.sequences + 1, dtype=torch.int32) * self.new).to(device),
            torch.tensor(lengths, dtype=torch.int32, device=device), table.to(device), slots.flatten().to(device),
            [self.new] * self.sequences, lengths,
        )  # fmt: skip


def cases() -> Iterator[Case]:
    """The cases in the table."""
    yield from (Case(sequences, 1, context, shared) for sequences, context, shared in _DECODES)
    yield from (Case(1, new, tokens) for new, tokens in _PROMPTS)


def measure(backend: AttentionBackend, case: Case) -> float:
    """Seconds of one layer."""
    dtype, device = backend.shape.dtype, backend.shape.device
    metadata = case.metadata(device)
    layers = 1 if case.new > 1 else max(1, _CACHE_BYTES // case.num_bytes(dtype))
    caches = backend.allocate(metadata.block_table.numel(), layers)
    for cache in caches:
        cache.normal_()
    tokens = case.sequences * case.new
    query, key, value = (torch.randn(tokens, heads, _DIM).to(device, dtype) for heads in (_HEADS, _KV_HEADS, _KV_HEADS))
    prepared, options = backend.prepare(metadata), AttentionOptions(_DIM**-0.5)

    def all_layers() -> None:
        for cache in caches:
            backend.forward(query, key, value, cache, prepared, options)

    return best_seconds(all_layers, device, calls=max(1, RECORDED_CALLS // layers)) / layers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cpu-kernels", choices=("auto", *CPU_LEVELS, "torch"), default="auto")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(heading(arguments.cpu_kernels))
    device, form = torch.device(arguments.device), Form(arguments.cpu_kernels, arguments.dtype, None)
    machine = measure_machine(form, sorted({new for new, _ in _PROMPTS}), device)
    shape = AttentionShape(_HEADS, _KV_HEADS, _DIM, _BLOCK_SIZE, form.torch_dtype, device)
    backend = create_backend("auto", shape, choose_kernels(arguments.cpu_kernels, device))
    print(f"{backend.name} attention in {arguments.dtype}; memory reads: {machine.bytes_per_second / 1e9:.1f} GB/s.\n")
    print("| one layer | floor µs | measured µs | ratio | 10^9 operations/s |")
    print("|---|---|---|---|---|")
    for case in cases():
        floor = case.num_bytes(form.torch_dtype) / machine.bytes_per_second
        if case.new > 1:
            floor = case.operations / machine.rate(case.new)
        seconds = measure(backend, case)
        print(
            f"| {case.name} | {floor * 1e6:.0f} | {seconds * 1e6:.0f} | {seconds / floor:.2f} | "
            f"{case.operations / seconds / 1e9:.0f} |", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
