"""Pooling results of a fake engine: values that tests can compute themselves."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Sequence

from quire.errors import FailedPrecondition, QuireError
from quire.v1 import common_pb2

SIZE = 4  # values of an embedding
EMBED, CLASSIFY = common_pb2.POOLING_TASK_EMBED, common_pb2.POOLING_TASK_CLASSIFY
TOKEN_EMBED, TOKEN_CLASSIFY = common_pb2.POOLING_TASK_TOKEN_EMBED, common_pb2.POOLING_TASK_TOKEN_CLASSIFY

EMBEDDER = common_pb2.PoolingInfo(
    tasks=[EMBED, TOKEN_EMBED], embedding_size=SIZE, token_embedding_size=SIZE, normalize=True, max_inputs=256
)
MATRYOSHKA = common_pb2.PoolingInfo(
    tasks=[EMBED], embedding_size=SIZE, is_matryoshka=True, matryoshka_dimensions=[2, 3], normalize=True,
    max_inputs=256, prompts={"query": "Q", "document": ""},
)  # fmt: skip
CLASSIFIER = common_pb2.PoolingInfo(
    tasks=[CLASSIFY, TOKEN_CLASSIFY], num_labels=3, label_names=["bad", "fair", "good"], use_activation=True,
    max_inputs=256,
)  # fmt: skip
CROSS_ENCODER = common_pb2.PoolingInfo(
    tasks=[CLASSIFY], num_labels=1, is_cross_encoder=True, type_vocab_size=2, use_activation=True, max_inputs=2
)
LATE_INTERACTION = common_pb2.PoolingInfo(
    tasks=[TOKEN_EMBED], token_embedding_size=SIZE, is_late_interaction=True, normalize=True, max_inputs=256,
    prompts={"query": "Q", "document": "D"},
)  # fmt: skip


def values(number: int, size: int) -> list[float]:
    """Distinct values of both signs."""
    return [math.sin(1.0 + number * 0.7 + index) for index in range(size)]


def unit(vector: Sequence[float]) -> list[float]:
    """The vector scaled to length 1."""
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector]


def embedding(token_ids: Sequence[int], dimensions: int = SIZE) -> list[float]:
    """Normalized."""
    return unit(values(sum(token_ids), SIZE)[:dimensions])


def token_embeddings(token_ids: Sequence[int]) -> list[list[float]]:
    """Normalized."""
    return [unit(values(token_id, SIZE)) for token_id in token_ids]


def classes(token_ids: Sequence[int], num_labels: int, token_type_ids: Sequence[int] = ()) -> list[float]:
    """Class probabilities of a sequence."""
    found = [math.exp(value) for value in values(sum(token_ids) + 3 * sum(token_type_ids), num_labels)]
    return [value / sum(found) for value in found] if num_labels > 1 else [found[0] / (1 + found[0])]


class FakePooling:
    """Answers at once, unless it is held; `failure` is what it answers instead."""

    def __init__(self) -> None:
        self.received: list[common_pb2.PoolRequest] = []
        self.cancelled = 0
        self.failure: QuireError | None = None
        self._go_on = asyncio.Event()
        self._go_on.set()

    def hold(self) -> None:
        """Requests wait from now on."""
        self._go_on.clear()

    def release(self) -> None:
        """Requests no longer wait."""
        self._go_on.set()

    async def answer(
        self, request: common_pb2.PoolRequest, info: common_pb2.PoolingInfo | None
    ) -> common_pb2.PoolResponse:
        self.received.append(request)
        if self.failure:
            raise self.failure
        if info is None:
            raise FailedPrecondition("not served for pooling")
        assert 1 <= len(request.inputs) <= info.max_inputs
        try:
            await self._go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return common_pb2.PoolResponse(
            outputs=[_output(each, request.parameters, info) for each in request.inputs], queue_seconds=0.25,
            compute_seconds=0.5,
        )  # fmt: skip


def _output(
    given: common_pb2.PoolingInput, parameters: common_pb2.PoolingParameters, info: common_pb2.PoolingInfo
) -> common_pb2.PoolingOutput:
    ids, types = list(given.token_ids), list(given.token_type_ids)
    task = parameters.task or info.tasks[0]
    assert task in info.tasks
    assert not types or (info.type_vocab_size and len(types) == len(ids))
    rows = _rows(task, ids, types, parameters, info)
    data = b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows)
    by_token = task in (TOKEN_EMBED, TOKEN_CLASSIFY)
    shape = [len(rows), len(rows[0])] if by_token else [len(rows[0])]
    return common_pb2.PoolingOutput(data=data, shape=shape, num_tokens=len(ids))


def _rows(
    task: int,
    ids: list[int],
    types: list[int],
    parameters: common_pb2.PoolingParameters,
    info: common_pb2.PoolingInfo,
) -> list[list[float]]:
    raw = parameters.HasField("use_activation") and not parameters.use_activation
    if task == EMBED:
        if parameters.HasField("normalize") and not parameters.normalize:
            return [values(sum(ids), SIZE)]
        return [embedding(ids, parameters.dimensions or SIZE)]
    if task == TOKEN_EMBED:
        return token_embeddings(ids)
    if task == CLASSIFY:
        return [values(sum(ids), info.num_labels) if raw else classes(ids, info.num_labels, types)]
    return [classes([token_id], info.num_labels) for token_id in ids]
