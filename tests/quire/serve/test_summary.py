"""The summary printed once a stack is ready, for generating and for pooling models."""

from __future__ import annotations

from quire.serve.summary import format_summary
from quire.v1 import common_pb2, tokenizer_pb2


def summary(
    model: common_pb2.ModelInfo, tokenizer: tokenizer_pb2.GetTokenizerInfoResponse | None = None,
    url: str = "http://here",
) -> str:  # fmt: skip
    return format_summary(
        model, workers=1, seconds=2.0, url=url, router="r:1", services={}, tokenizer=tokenizer, api_key=False,
        log="-", parsers={},
    )  # fmt: skip


def model_info(**changes: object) -> common_pb2.ModelInfo:
    return common_pb2.ModelInfo(
        served_model_names=["m"], architecture="A", dtype="float32", device="cpu", max_model_len=100, block_size=16,
        max_num_batched_tokens=1024, **changes,  # type: ignore[arg-type]
    )  # fmt: skip


def test_of_models_that_write() -> None:
    text = summary(model_info(kv_cache_tokens=250, num_kv_blocks=16))
    assert "KV cache" in text
    assert "2.5 x 100 tokens" in text
    assert "curl http://here/v1/completions" in text


def test_of_a_host_tier() -> None:
    assert "host tier" not in summary(model_info(kv_cache_tokens=250))
    assert "host tier    1,200 more blocks\n" in summary(model_info(kv_cache_tokens=250, num_host_blocks=1200))
    text = summary(model_info(kv_cache_tokens=250, num_host_blocks=1200, num_host_snapshots=3))
    assert "host tier    1,200 more blocks and 3 more states\n" in text


def test_of_models_that_pool() -> None:
    pooling = common_pb2.PoolingInfo(tasks=[common_pb2.POOLING_TASK_EMBED], embedding_size=384, pooling_type="MEAN")
    text = summary(model_info(runner="pooling", pooling=pooling))
    assert "embed (MEAN; 384 values)" in text
    assert "KV cache" not in text
    assert "curl http://here/v1/embeddings" in text
    classes = common_pb2.PoolingInfo(tasks=[common_pb2.POOLING_TASK_CLASSIFY], num_labels=3, pooling_type="CLS")
    assert "curl http://here/classify" in summary(model_info(runner="pooling", pooling=classes))


def test_of_models_that_read_images() -> None:
    assert "images       read in conversations" in summary(model_info(accepts_images=True))
    assert "images" not in summary(model_info())


def test_of_models_that_read_audio() -> None:
    text = summary(model_info(accepts_audio=True), tokenizer_pb2.GetTokenizerInfoResponse())
    assert "audio        read in conversations, and transcribed" in text
    assert "curl http://here/v1/audio/transcriptions -F file=@speech.mp3 -F model=m" in text
    assert "curl http://here/v1/completions" in summary(model_info(accepts_audio=True))
    assert "audio" not in summary(model_info(accepts_videos=True))


def test_of_servers_without_http() -> None:
    text = summary(model_info(), url="grpc://here:1")
    assert "API          grpc://here:1 (vllm.grpc.engine.VllmEngine" in text
    assert "curl" not in text
    assert "/docs" not in text
