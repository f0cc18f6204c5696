"""Embedding rows converted to other dtypes and encodings match torch where torch has the dtype."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gateway.answers import vectors
from gateway.answers.pooled import Pooled
from gateway.answers.vectors import cosine, encoded, max_similarity, packed_signs, rows_of


def output(rows: object) -> Pooled:
    values = np.asarray(rows, "<f4")
    return Pooled(values.tobytes(), values.shape, 1)


RANDOM = np.concatenate(
    [np.random.default_rng(1).normal(size=4000) * scale for scale in (1e-9, 1e-3, 1, 50)]
    + [np.asarray([0.0, -0.0, 448, -448, 0.001953125, 0.0009765625, 1.0625, 1.1875])]
)


@pytest.mark.parametrize(
    ("dtype", "reference"),
    [
        ("float16", torch.float16), ("bfloat16", torch.bfloat16), ("fp8_e4m3", torch.float8_e4m3fn),
        ("fp8_e5m2", torch.float8_e5m2),
    ],
)  # fmt: skip
def test_shorter_types_are_torchs(dtype: str, reference: torch.dtype) -> None:
    expected = torch.tensor(RANDOM, dtype=torch.float32).to(reference)
    found = np.frombuffer(encoded(output(RANDOM), dtype, "native"), np.uint8)
    assert np.array_equal(found, expected.view(torch.uint8).numpy().reshape(-1))


def test_the_order_of_bytes() -> None:
    for dtype, size in (("float32", 4), ("float16", 2), ("bfloat16", 2)):
        little = np.frombuffer(encoded(output(RANDOM), dtype, "little"), np.uint8).reshape(-1, size)
        big = np.frombuffer(encoded(output(RANDOM), dtype, "big"), np.uint8).reshape(-1, size)
        assert np.array_equal(little, big[:, ::-1])


def test_what_is_larger_than_a_type_takes_becomes_its_largest() -> None:
    assert encoded(output([1e6, -1e6]), "fp8_e4m3", "little") == bytes([0x7E, 0xFE])
    assert encoded(output([1e6, -1e6]), "fp8_e5m2", "little") == bytes([0x7B, 0xFB])


def test_signs_as_bits() -> None:
    vectors = [output([1, -1, 1, -1, 0, 1, 1, 1]), output([-1.0] * 8)]
    assert packed_signs(vectors, signed=False) == [[0b10100111], [0]]
    assert packed_signs(vectors, signed=True) == [[0b10100111 - 128], [-128]]


def test_comparisons() -> None:
    assert cosine(output([3, 4]), output([4, 3])) == pytest.approx(0.96)
    assert cosine(output([0, 0]), output([4, 3])) == 0.0
    query, document = output([[1, 0], [0, 1]]), output([[0.5, 0.1], [0.2, 0.9], [-1, -1]])
    assert max_similarity(query, document) == pytest.approx(0.5 + 0.9)
    assert rows_of(document).shape == (3, 2)


def test_long_texts_are_compared_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(2)
    query, document = draw.normal(size=(50, 8)), draw.normal(size=(70, 8))
    monkeypatch.setattr(vectors, "_MOST_PRODUCTS", 7 * 70)
    found = max_similarity(output(query), output(document))
    assert found == pytest.approx((query @ document.T).max(axis=1).sum(), rel=1e-5)
