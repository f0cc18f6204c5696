"""Every implementation of the recurrent operations against float64 formulas, and against itself split differently."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine_svc.native.library import kernels
from engine_svc.recurrence.base import GatedNorm, Recurrence
from engine_svc.recurrence.native import NativeRecurrence
from engine_svc.recurrence.plain import PlainRecurrence
from tests.support.for_each import for_each
from tests.support.native import every_level
from tests.support.recurrence import OPERATIONS, Operation, Part, delta_rule, heads_scan, normal

Gate = Literal["silu", "sigmoid"]
LENGTHS = (9, 1, 1, 33, 2)
SHORTER = (9, 1, 1, 18, 2)  # for the interpreter; one is longer than a tile of tokens, and than a chunk
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
every_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
# One operation of each Triton kernel, and both kinds of convolution.
OF_KERNELS = ("convolution-with-bias", "gated-convolution-with-bias", "gated-units", "channels", "heads-of-70",
              "delta-rule-of-70-by-key-strong")  # fmt: skip
# The interpreter is slow: of the operations that share a kernel, all but one are tried in float32 alone.
every_operation_and_half = pytest.mark.parametrize(
    ("operation", "half"),
    [(each, half) for each in OPERATIONS for half in (False, True) if not half or each.name in OF_KERNELS],
    ids=lambda value: value.name if isinstance(value, Operation) else "half" if value else "float32",
)
every_kernel = pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if each.name in OF_KERNELS], ids=lambda operation: operation.name
)


def sequences(operation: Operation, dtype: torch.dtype, lengths: tuple[int, ...] = LENGTHS) -> list[torch.Tensor]:
    return [normal(length, operation.size, seed=5 + length, dtype=dtype) for length in lengths]


def check_formula(
    recurrence: Recurrence, operation: Operation, dtype: torch.dtype, tolerance: float | None = None,
    lengths: tuple[int, ...] = LENGTHS,
) -> None:  # fmt: skip
    tokens = sequences(operation, dtype, lengths)
    slots = (3, 0, 6, 1, 4)
    parts = [Part(slot, each) for slot, each in zip(slots, tokens, strict=True)]
    held = operation.states(torch.float32)
    tolerance = tolerance or (1e-5 if dtype is torch.float32 else 2e-2)
    for each, found in zip(tokens, operation(recurrence, held, parts), strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), operation.expected(each.double()), rtol=tolerance, atol=tolerance)
    for state in held:  # slots without a sequence are not touched
        assert state[[2, 5]].isnan().all()


def in_pieces(
    recurrence: Recurrence, operation: Operation, dtype: torch.dtype, stored: torch.dtype,
    lengths: tuple[int, ...] = LENGTHS,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:  # fmt: skip
    """Returns outputs of each sequence computed alone in one go, and in pieces beside others in other slots."""
    whole, tokens = [], sequences(operation, dtype, lengths)
    for each in tokens:
        whole += operation(recurrence, operation.states(stored), [Part(2, each)])
    held, found = operation.states(stored), [each[:0] for each in whole]
    done = [0] * len(whole)
    while any(count < len(each) for count, each in zip(done, whole, strict=True)):
        parts, who = [], []
        for index, each in enumerate(tokens):
            step = 1 + (done[index] + index) % 4
            if done[index] < len(each):
                parts.append(Part(6 - index, each[done[index] : done[index] + step], is_fresh=not done[index]))
                who.append(index)
                done[index] = min(len(each), done[index] + step)
        for index, output in zip(who, operation(recurrence, held, parts), strict=True):
            found[index] = torch.cat((found[index], output)) if len(found[index]) else output
    return whole, found


def verified(
    recurrence: Recurrence, operation: Operation, stored: torch.dtype
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns outputs of each sequence computed alone in one go, and in steps with tokens that turn out to be wrong."""
    tokens, held = sequences(operation, torch.float32, (14, 6, 21)), operation.states(stored)
    whole = [operation(recurrence, operation.states(stored), [Part(2, each)])[0] for each in tokens]
    wrong = normal(2, operation.size, seed=99)
    found = [each[:0] for each in whole]
    # By step and sequence: computed tokens before it, right and wrong tokens, and slots read and written.
    steps = (
        ((0, 9, 0, 0, (0,)), (0, 1, 0, 3, (3,)), (0, 18, 0, 5, (5,))),
        ((9, 2, 1, 0, (0, 1, 2)), (1, 1, 1, 3, (3, 4)), (18, 1, 0, 5, (5,))),
        ((11, 1, 1, 1, (0, 1)), (2, 3, 0, 3, (6, 4, 3)), (19, 2, 0, 5, (5,))),
        ((12, 2, 0, 0, (0,)), (5, 1, 0, 3, (4,))),
    )
    for step in steps:
        parts = [
            Part(source, torch.cat((tokens[index][computed : computed + right], wrong[:rest])), not computed, targets)
            for index, (computed, right, rest, source, targets) in enumerate(step)
        ]
        for index, output in enumerate(operation(recurrence, held, parts)):
            found[index] = torch.cat((found[index], output[: step[index][1]]))
    return whole, found


@every_operation
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
def test_plain_goes_back(operation: Operation, stored: torch.dtype) -> None:
    for whole, found in zip(*verified(PlainRecurrence(), operation, stored), strict=True):
        torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)


@every_level
@for_each("operation", OPERATIONS)
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
def test_native_goes_back_bit_for_bit(operation: Operation, level: str, stored: torch.dtype) -> None:
    for whole, found in zip(*verified(NativeRecurrence(kernels(level)), operation, stored), strict=True):
        assert torch.equal(whole, found)


@every_kernel
def test_triton_goes_back(monkeypatch: pytest.MonkeyPatch, operation: Operation) -> None:
    """Bit for bit without chunks, with states in half the bits; with them, the longest of the prompts is in chunks."""
    of_few_programs(monkeypatch)
    monkeypatch.setattr("engine_svc.recurrence.triton.MOST_TARGETS", 3)
    for whole, found in zip(*verified(triton_recurrence(is_invariant=True), operation, torch.float16), strict=True):
        assert torch.equal(whole, found)
    for whole, found in zip(*verified(triton_recurrence(), operation, torch.float32), strict=True):
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4)


@every_operation
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_plain(operation: Operation, dtype: torch.dtype) -> None:
    check_formula(PlainRecurrence(), operation, dtype)


@every_level
@for_each("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_native(operation: Operation, dtype: torch.dtype, level: str) -> None:
    check_formula(NativeRecurrence(kernels(level)), operation, dtype)


@every_operation
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
def test_plain_in_pieces(operation: Operation, stored: torch.dtype) -> None:
    for whole, found in zip(*in_pieces(PlainRecurrence(), operation, torch.float32, stored), strict=True):
        torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)


@every_operation_and_half
def test_triton(monkeypatch: pytest.MonkeyPatch, operation: Operation, half: bool) -> None:
    """Prompts are in chunks, if the operation has any; by the next test they are not."""
    of_few_programs(monkeypatch, tiles=1 if half else 2)
    check_formula(triton_recurrence(), operation, torch.float16 if half else torch.float32, lengths=SHORTER)


@every_operation
def test_triton_in_pieces_bit_for_bit(monkeypatch: pytest.MonkeyPatch, operation: Operation) -> None:
    """States are stored in float32, or in half the bits."""
    of_few_programs(monkeypatch)
    half = operation.name in OF_KERNELS
    stored = torch.float16 if half else torch.float32
    pieces = in_pieces(triton_recurrence(is_invariant=True), operation, torch.float32, stored, SHORTER)
    for each, whole, found in zip(sequences(operation, torch.float32, SHORTER), *pieces, strict=True):
        assert torch.equal(whole, found)
        if not half:
            torch.testing.assert_close(whole.double(), operation.expected(each.double()), rtol=1e-5, atol=1e-5)


# Operations that compute prompts in chunks, and where a token's time steps are, and keys if it has any.
SCAN, DELTA = (slice(420, 426), None), (slice(468, 474), slice(24, 48))
IN_CHUNKS = {
    "heads": (heads_scan(), *SCAN), "heads-bounded": (heads_scan(64, (0.2, 0.9)), slice(384, 390), None),
    "heads-of-1": (heads_scan(1, bias=False), slice(6, 12), None), "delta": (delta_rule(), *DELTA),
    "delta-strong": (delta_rule(strongest=2.0), *DELTA),
}  # fmt: skip
# Chunks of 64 tokens are for bfloat16, which the interpreter lacks and float32 stands in for.
CHUNKS = [
    *[(name, torch.float32, 16) for name in IN_CHUNKS],
    *[(name, torch.float32, 64) for name in ("heads", "delta-strong")],
    *[(name, torch.float16, 16) for name in ("heads-bounded", "delta-strong")],
]  # fmt: skip
# Tokens of three sequences, and those in the first of two steps: they fill chunks exactly, or in part, or are too few.
PARTS = {16: ((51, 33, 24), (35, 32, 3)), 64: ((134, 65, 24), (70, 64, 3))}


@pytest.mark.parametrize(("name", "dtype", "chunk"), CHUNKS, ids=str)
def test_triton_in_chunks(monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype, chunk: int) -> None:
    """Prompts in two parts beside sequences that decode, with decays from hardly any to all, and equal keys."""
    recurrence, (operation, steps, keys) = triton_recurrence(), IN_CHUNKS[name]
    monkeypatch.setattr(
        "engine_svc.kernels.chunked_scan.ChunkTiles.of", lambda tiles, *_: tiles._replace(chunk=chunk, columns=64)
    )
    held, (lengths, cuts) = operation.states(torch.float32), PARTS[chunk]
    tokens = [normal(length, operation.size, seed=length, dtype=dtype) for length in lengths]
    for each in tokens:
        each[:, steps] *= torch.linspace(0, 9, len(each))[:, None].to(dtype)
        if keys:
            each[5:40, keys] = each[5, keys].clone()
    found = [each[:0, :0] for each in tokens]
    for part in range(2):
        parts = [
            Part(2 * index, each[cut:] if part else each[:cut], is_fresh=not part)
            for index, (each, cut) in enumerate(zip(tokens, cuts, strict=True))
        ]
        with np.errstate(divide="ignore", invalid="ignore"):  # in softplus, of what it does not use
            outputs = operation(recurrence, held, parts)
        found = outputs if not part else [torch.cat(both) for both in zip(found, outputs, strict=True)]
    tolerance = 1e-4 if dtype is torch.float32 else 2e-2
    for each, output in zip(tokens, found, strict=True):
        torch.testing.assert_close(output.double(), operation.expected(each.double()), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("gates_first", [True, False])
def test_triton_norm(gates_first: bool) -> None:
    check_norm(triton_recurrence(), gates_first, torch.float32)
    check_norm(triton_recurrence(), gates_first, torch.float16, "sigmoid")


def of_few_programs(monkeypatch: pytest.MonkeyPatch, tiles: int = 1) -> None:
    """Makes the kernels use few programs, because the interpreter runs one after the other.

    Args:
        tiles: how many tiles there are of what is no power of two: one that is larger, or two, the second one not full.
    """

    def columns(_: int, dim: int) -> int:
        return 1 << max(0, (dim - 1).bit_length() + 1 - tiles)

    monkeypatch.setattr("engine_svc.recurrence.triton.columns", columns)
    monkeypatch.setattr("engine_svc.recurrence.triton.TILE_UNITS", columns(1, 300))


def triton_recurrence(is_invariant: bool = False) -> Recurrence:
    """Creates the Triton implementation for the interpreter; skips where Triton is not installed."""
    pytest.importorskip("triton")
    from engine_svc.recurrence.triton import InvariantTritonRecurrence, TritonRecurrence

    return InvariantTritonRecurrence() if is_invariant else TritonRecurrence()


@every_level
@for_each("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (torch.float32, torch.float32), (torch.float32, torch.float16), (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
    ],
    ids=str,
)  # fmt: skip
def test_native_in_pieces_bit_for_bit(
    operation: Operation, level: str, dtype: torch.dtype, stored: torch.dtype
) -> None:
    recurrence = NativeRecurrence(kernels(level))
    assert recurrence.batch_invariant
    for whole, found in zip(*in_pieces(recurrence, operation, dtype, stored), strict=True):
        assert torch.equal(whole, found)


@every_operation
def test_states_of_16_bits_are_the_same_in_both(operation: Operation) -> None:
    """Both round states after each token, and the next token reads the rounded state."""
    from tests.support.native import AVAILABLE, fastest_kernels

    if not AVAILABLE:
        pytest.skip("no kernels")
    tokens, outputs = sequences(operation, torch.float32), []
    for recurrence in (PlainRecurrence(), NativeRecurrence(fastest_kernels())):
        parts = [Part(index, each) for index, each in enumerate(tokens)]
        outputs.append(operation(recurrence, operation.states(torch.bfloat16), parts))
    for one, other in zip(*outputs, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


def check_norm(recurrence: Recurrence, gates_first: bool, dtype: torch.dtype, gate: Gate = "silu") -> None:
    groups, size = 3, 37
    both = normal(5, 2 * groups * size, seed=1, dtype=dtype)
    hidden, gates = both.chunk(2, dim=-1)
    weight = normal(groups * size, seed=2, dtype=dtype)
    found = recurrence.gated_norm(hidden, gates, GatedNorm(weight, groups, 1e-3, gates_first, gate))
    wide, opened = hidden.double(), (F.silu if gate == "silu" else torch.sigmoid)(gates.double())
    grouped = (wide * opened if gates_first else wide).view(5, groups, size)
    normed = F.rms_norm(grouped, (size,), None, 1e-3).flatten(1) * weight.double()
    expected = normed if gates_first else normed * opened
    tolerance = 1e-6 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("gates_first", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_plain_norm(gates_first: bool, dtype: torch.dtype) -> None:
    check_norm(PlainRecurrence(), gates_first, dtype)
    check_norm(PlainRecurrence(), gates_first, dtype, "sigmoid")


@every_level
@pytest.mark.parametrize("gates_first", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_native_norm(level: str, gates_first: bool, dtype: torch.dtype) -> None:
    check_norm(NativeRecurrence(kernels(level)), gates_first, dtype)
    check_norm(NativeRecurrence(kernels(level)), gates_first, dtype, "sigmoid")
