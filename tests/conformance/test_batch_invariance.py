"""Implementations that claim batch invariance give bitwise equal rows, whatever else is in the batch.

Triton kernels run in its interpreter, which computes in numpy: that the compiler keeps to the same order has to be
checked on a GPU (tests/gpu).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from engine_svc.attention.base import AttentionBackend, AttentionOptions
from engine_svc.kernels.tiles import Tiles
from engine_svc.native.library import kernels
from engine_svc.ops.base import Affine, HeadNorms, Ops, Routing
from engine_svc.ops.native import NativeOps
from engine_svc.ops.triton import InvariantTritonOps
from tests.conformance.test_attention import NUM_BLOCKS, Sequence, make_backend, make_sequences, metadata_of
from tests.support.for_each import for_each
from tests.support.native import every_level

SIZE = 64
Operation = Callable[[torch.Tensor], torch.Tensor]


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random values on the default device, the same numbers on every device."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), device="cpu")
    return values.to(torch.get_default_device(), dtype)


def matrix(ops: Ops, dtype: torch.dtype) -> Operation:
    product = ops.matrix(normal(200, SIZE, dtype=dtype), normal(200, dtype=dtype))
    return lambda hidden: torch.cat((product(hidden).float(), product(hidden, wide=True)), dim=1)


def int8_matrix(ops: Ops, dtype: torch.dtype) -> Operation:
    product = ops.matrix(ops.quantize_rows(normal(200, SIZE, dtype=dtype)), normal(200, dtype=dtype))
    return lambda hidden: torch.cat((product(hidden).float(), product(hidden, wide=True)), dim=1)


def head_matrices(ops: Ops, dtype: torch.dtype) -> Operation:
    product = ops.head_matrices(normal(4, 16, 24, dtype=dtype).transpose(1, 2))

    def run(hidden: torch.Tensor) -> torch.Tensor:
        output = hidden.new_empty((len(hidden), 4, 24))
        product(hidden.view(len(hidden), 4, 16), output)
        return output.flatten(1)

    return run


def experts(ops: Ops, dtype: torch.dtype) -> Operation:
    gate = normal(SIZE, 6, dtype=dtype, seed=5).float()
    product = ops.experts(normal(6, 80, SIZE, dtype=dtype) / 8, normal(6, SIZE, 40, dtype=dtype) / 8)

    def run(hidden: torch.Tensor) -> torch.Tensor:
        # Row by row, because torch's matrix product is not under test here.
        scores = torch.stack([row.float() @ gate for row in hidden])
        return product(hidden, *scores.softmax(-1).topk(3))

    return run


def norm(ops: Ops, dtype: torch.dtype) -> Operation:
    return lambda hidden: ops.rms_norm(hidden, normal(SIZE, dtype=dtype), 1e-6)


def add_norm(ops: Ops, dtype: torch.dtype) -> Operation:
    return lambda hidden: ops.add_rms_norm(hidden, hidden.clone() * 3, normal(SIZE, dtype=dtype), 1e-6)


def add_layer_norm(ops: Ops, dtype: torch.dtype) -> Operation:
    affine = Affine(normal(SIZE, dtype=dtype), normal(SIZE, dtype=dtype, seed=1))
    return lambda hidden: ops.add_layer_norm(hidden, hidden.clone() * 3, affine, 1e-6)


def rotate(ops: Ops, dtype: torch.dtype) -> Operation:
    norms = HeadNorms(normal(16, dtype=dtype), normal(16, dtype=dtype, seed=1), 1e-6)
    table = normal(1, 2, 8, dtype=dtype)
    return lambda hidden: ops.rotate(
        hidden.clone().view(len(hidden), 4, 16), table.repeat(len(hidden), 1, 1), 3, norms
    ).flatten(1)


def rotate_pairs(ops: Ops, dtype: torch.dtype) -> Operation:
    def run(hidden: torch.Tensor) -> torch.Tensor:
        output = torch.empty_like(hidden).view(len(hidden), 4, 16)
        ops.rotate_pairs(hidden.view(output.shape), normal(1, 2, 8, dtype=dtype).repeat(len(hidden), 1, 1), output)
        return output.flatten(1)

    return run


def scale_rows(ops: Ops, dtype: torch.dtype) -> Operation:
    def run(hidden: torch.Tensor) -> torch.Tensor:
        values = hidden.clone()
        ops.scale_rows(values, hidden[:, :1].float().contiguous())
        return values

    return run


def choose_experts(ops: Ops, dtype: torch.dtype) -> Operation:
    routing = Routing(3, True, "sigmoid", num_groups=4, chosen_groups=2)
    bias = normal(SIZE, dtype=torch.float32)
    return lambda hidden: torch.cat(ops.choose_experts(hidden.float(), bias, routing), dim=1)


OPERATIONS: dict[str, Callable[[Ops, torch.dtype], Operation]] = {
    "matrix": matrix, "int8 matrix": int8_matrix, "head matrices": head_matrices, "experts": experts, "norm": norm,
    "add norm": add_norm, "add layer norm": add_layer_norm, "rotate": rotate, "choose experts": choose_experts,
    "silu": lambda ops, dtype: lambda hidden: ops.activate_and_multiply(hidden, "silu"),
    "gelu": lambda ops, dtype: lambda hidden: ops.activate_and_multiply(hidden, "gelu_tanh"),
}  # fmt: skip
# Done by torch's elementwise operators on a GPU, and by C++ kernels on a CPU.
ON_A_CPU = OPERATIONS | {
    "rotate pairs": rotate_pairs,
    "add": lambda ops, dtype: lambda hidden: ops.add(hidden.clone() * 3, hidden, hidden[:, :1].float().contiguous()),
    "gate": lambda ops, dtype: lambda hidden: ops.gate(hidden.clone() * 3, hidden),
    "scale": lambda ops, dtype: lambda hidden: ops.scale(hidden.float() * 2, 0.3),
    "scale rows": scale_rows,
    "softcap": lambda ops, dtype: lambda hidden: ops.softcap(hidden.float() * 40, 30.0),
}  # fmt: skip


def check_rows(ops: Ops, operation: str, dtype: torch.dtype, num_rows: int) -> None:
    """Compares each row alone, in the whole batch, and at another place among other rows."""
    assert ops.batch_invariant
    run = ON_A_CPU[operation](ops, dtype)
    hidden = normal(num_rows, SIZE, dtype=dtype)
    whole = run(hidden)
    order = normal(num_rows, dtype=torch.float32, seed=1).argsort()
    assert run(hidden[order]).equal(whole[order])
    for first, count in ((0, 1), (num_rows - 1, 1), (1, 2), (2, 5), (num_rows // 2, num_rows // 3)):
        assert run(hidden[first : first + count]).equal(whole[first : first + count])


@pytest.mark.parametrize(
    ("operation", "dtype"),
    [
        (operation, dtype) for operation in OPERATIONS for dtype in (torch.float32, torch.float16)
        if operation != "choose experts" or dtype is torch.float32  # all scores are float32
    ],
)  # fmt: skip
def test_rows_on_a_gpu(operation: str, dtype: torch.dtype) -> None:
    # More than a tile of rows for products; the other kernels go row by row.
    is_product = operation in ("matrix", "int8 matrix", "head matrices", "experts")
    check_rows(InvariantTritonOps(), operation, dtype, 70 if is_product else 20)


@every_level
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@for_each("operation", ON_A_CPU)
def test_rows_on_a_cpu(level: str, operation: str, dtype: torch.dtype) -> None:
    check_rows(NativeOps(kernels(level)), operation, dtype, 150)


def attend(
    backend: AttentionBackend,
    sequences: list[Sequence],
    tensors: list[tuple[torch.Tensor, ...]],
    steps: list[list[int]],
    options: AttentionOptions,
) -> list[torch.Tensor]:
    """Returns the outputs for all tokens of each sequence; each step lists how many tokens it computes of each."""
    (cache,) = backend.allocate(NUM_BLOCKS, 1)
    computed, found = [0] * len(sequences), [[] for _ in sequences]  # type: list[int], list[list[torch.Tensor]]
    for step in steps:
        chosen = [index for index, count in enumerate(step) if count]
        parts = [Sequence(computed[index], step[index], sequences[index].blocks) for index in chosen]
        new = [[t[part.computed : part.computed + part.new] for t in tensors[index]] for index, part in
               zip(chosen, parts, strict=True)]  # fmt: skip
        columns = [torch.cat(column) for column in zip(*new, strict=True)]
        if backend.shape.keys_are_values:
            columns[2] = columns[1]
        prepared = backend.prepare(metadata_of(parts, backend.shape.device))
        output = backend.forward(columns[0], columns[1], columns[2], cache, prepared, options)
        for index, rows in zip(chosen, output.split([part.new for part in parts]), strict=True):
            found[index].append(rows)
            computed[index] += len(rows)
    return [torch.cat(rows) for rows in found]


def check_attention(backend: AttentionBackend, options: AttentionOptions, lengths: tuple[int, int]) -> None:
    """Compares a prompt alone and whole, in chunks beside others, and with its last tokens one at a time."""
    assert backend.batch_invariant
    shape = backend.shape
    sequences = make_sequences([(0, length) for length in lengths], 0)
    tensors = [
        tuple(
            normal(length, heads, shape.head_dim, dtype=shape.dtype, seed=7 * index + kind) * 2
            for kind, heads in enumerate((shape.num_heads, shape.num_kv_heads, shape.num_kv_heads))
        )
        for index, length in enumerate(lengths)
    ]
    alone = [
        attend(backend, [sequence], [each], [[length]], options)[0]
        for sequence, each, length in zip(sequences, tensors, lengths, strict=True)
    ]
    ways: list[list[list[int]]] = [[list(lengths)]]
    rest, steps = list(lengths), []
    while any(rest):
        steps.append([min(43 + index, left) for index, left in enumerate(rest)])
        rest = [left - new for left, new in zip(rest, steps[-1], strict=True)]
    ways.append(steps)
    ways.append([[length - 3 for length in lengths], *[[1] * len(lengths)] * 3])
    ways.append([[length - 4 for length in lengths], [1, 0], [3, 4]])
    for steps in ways:
        for found, expected in zip(attend(backend, sequences, tensors, steps, options), alone, strict=True):
            assert found.equal(expected)


SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {"num_heads": 3, "num_kv_heads": 1, "head_dim": 16},
    "each": {"num_heads": 2, "num_kv_heads": 2, "head_dim": 80},
    "one": {"num_heads": 2, "num_kv_heads": 1, "head_dim": 40, "keys_are_values": True},
}


def options_of(special: str, shape: dict[str, Any]) -> AttentionOptions:
    window = 70 if "window of parts" in special else 20 if "window" in special else None
    sinks, slopes = (
        normal(shape["num_heads"], dtype=torch.float32).abs() if name in special else None
        for name in ("sinks", "slopes")
    )
    softcap = 1.5 if "softcap" in special else None
    return AttentionOptions(shape["head_dim"] ** -0.5, window, softcap, sinks, slopes=slopes)


LENGTHS = 12, 80


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses parts of 64 keys, as the interpreter is slow, and two tiles per part: some rows see only one tile whole."""
    monkeypatch.setattr("engine_svc.attention.triton.prefill_tiles", lambda *_, **__: Tiles(32, 32, 4))
    for module in ("engine_svc.kernels.paged_decode", "engine_svc.attention.triton"):
        monkeypatch.setattr(f"{module}.PART", 64)


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize(
    ("special", "dtype"),
    [
        ("", torch.float32),
        *(pytest.param(special, torch.float16, marks=pytest.mark.slow) for special in
          ("window and softcap", "window of parts", "sinks and slopes")),
    ],
)  # fmt: skip
def test_attention_on_a_gpu(special: str, dtype: torch.dtype) -> None:
    backend = make_backend("triton", dtype=dtype, batch_invariant=True, **SHAPES["grouped"])
    check_attention(backend, options_of(special, SHAPES["grouped"]), LENGTHS)


@pytest.mark.usefixtures("short_parts")
def test_ends_of_prompts_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of a prompt's end are split among programs where there are too few programs, which changes no bit."""
    monkeypatch.setattr("engine_svc.attention.triton._LONG_CONTEXT", 16)
    monkeypatch.setattr("engine_svc.attention.triton.multiprocessors", lambda _: 14)
    backend = make_backend("triton", batch_invariant=True, **SHAPES["grouped"])
    outlast, found = backend._outlast, list[bool]()

    def noted(*lens: np.ndarray) -> np.ndarray:
        found.extend(outlasts := outlast(*lens))
        return outlasts

    monkeypatch.setattr(backend, "_outlast", noted)
    check_attention(backend, options_of("", SHAPES["grouped"]), LENGTHS)
    assert set(found) == {False, True}


@pytest.mark.slow
@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("name", ["each", "one"])
def test_shapes_on_a_gpu(name: str) -> None:
    backend = make_backend("triton", batch_invariant=True, **SHAPES[name])
    check_attention(backend, options_of("", SHAPES[name]), LENGTHS)
