"""Builds the engine of a worker that encodes images, videos and audio for other workers (--mm-encoder-only)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine_svc.core.pooling_engine import PoolingEngine
from engine_svc.kv_cache.sizing import KvCacheSize
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.memory_ahead import memory_ahead
from engine_svc.model_info import ModelInfo, make_model_info
from engine_svc.one_shot import check_one_shot
from engine_svc.parallel.layout import layout_of
from engine_svc.plan import EncodedRows, KvCacheSpec
from engine_svc.pooling_plan import EncodingInput
from engine_svc.requests.encoding import EncodingFacts, EncodingRequest
from engine_svc.requests.generation_config import GenerationDefaults
from quire.collection import without_collection
from quire.media import MediaKind
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from quire.options.multimodal import ENCODER_FLAG
from quire.runners import ENCODE, POOLING

_IMAGES_PER_STEP = 1  # so that a request's end, or a new one, never waits for several


def build_encoding(
    folder: Path, model: ModelOptions, options: EngineOptions
) -> tuple[PoolingEngine[EncodingRequest, EncodingInput, EncodedRows], ModelInfo, KvCacheSpec]:
    """Loads the encoder, in the thread that will run its steps.

    Args:
        folder: folder of the model.

    Raises:
        StartupError: the encoder cannot be served; says why and what to do.
    """
    others = {
        "more than one rank (--tensor-parallel-size and similar options)": layout_of(options.parallel).num_ranks > 1,
        "--data-parallel-size": options.parallel.data_parallel_size > 1,
        "--enable-lora": options.lora.enable_lora,
        "--runner pooling": options.pooling.runner == POOLING,
    }
    check_one_shot(options, ENCODER_FLAG, others)
    # Imported late, because torch takes a second or two and the worker answers requests by then.
    source = create_format(folder, options.load)
    with without_collection(), memory_ahead(source, options.kernels.device):
        from engine_svc.executor.device import choose_device
        from engine_svc.media.encoder_rank import EncoderRank, EncoderRunner
        from engine_svc.transfer import device_name

    device = choose_device(options.kernels.device, 0)
    rank = EncoderRank(lambda: EncoderRunner(folder, options, device), device)
    loaded = rank.runner.loaded
    kinds, dtype = loaded.encoder.kinds, str(loaded.dtype).removeprefix("torch.")
    spec = KvCacheSpec(
        architecture=loaded.architecture, dtype=dtype, device=device_name(device), vocab_size=0, max_model_len=0,
        bytes_per_block=0, available_bytes=0, attention_backend="", block_size=0, max_num_batched_tokens=0,
        accepts_images=MediaKind.IMAGE in kinds, accepts_videos=MediaKind.VIDEO in kinds,
        accepts_audio=MediaKind.AUDIO in kinds,
    )  # fmt: skip
    info = make_model_info(folder, model, options, spec, KvCacheSize(0, 0), GenerationDefaults({}, frozenset()))
    scheduler = replace(options.scheduler, max_num_seqs=_IMAGES_PER_STEP)
    engine = PoolingEngine(rank, EncodingFacts(), scheduler, _IMAGES_PER_STEP)
    return engine, replace(info, runner=ENCODE), spec
