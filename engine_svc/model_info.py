"""Information about a worker's model, which routers and gateways ask for and requests are validated against."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from engine_svc.config_formats.registry import find_model_config
from engine_svc.fingerprint import fingerprints
from engine_svc.kv_cache.sizing import KvCacheSize
from engine_svc.plan import KvCacheSpec, RoutedExpertsForm
from engine_svc.requests.generation_config import GenerationDefaults
from engine_svc.requests.pooling import PoolingFacts
from engine_svc.requests.request import RequestLimits
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from quire.runners import ENCODE, GENERATE


@dataclass(frozen=True)
class ModelInfo:
    """The model info. Its fields are documented in quire.v1.ModelInfo."""

    served_model_names: tuple[str, ...]
    model: str
    architecture: str
    max_model_len: int
    vocab_size: int
    dtype: str
    device: str
    block_size: int
    num_kv_blocks: int
    kv_cache_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    eos_token_ids: tuple[int, ...]
    max_logprobs: int
    tensor_parallel_size: int
    attention_backend: str
    scheduling_policy: str
    fingerprint: str
    default_sampling: dict[str, float | int] = field(default_factory=dict)
    prompt_embeds_size: int = 0
    accepts_images: bool = False
    accepts_videos: bool = False
    accepts_audio: bool = False
    encoder_tokens: int = 0
    frames_per_token: int = 0
    bidirectional_images: bool = False
    image_window: int | None = None
    cpu_kernels: str = ""
    batch_invariant: bool = False
    state_bytes: int = 0
    num_snapshots: int = 0  # saved states of recurrent layers that fit
    num_host_blocks: int = 0  # of the second tier, in host memory
    num_host_snapshots: int = 0
    kv_role: str = ""  # how it exchanges blocks with other workers; empty if it does not
    kv_connector: str = ""  # by which it does
    ec_role: str = ""  # whether it encodes media for other workers, or has them encode its own; empty if neither
    encoder_fingerprint: str = ""  # empty without an encoder
    max_loras: int = 0
    draft_cache_bytes: int = 0
    data_parallel_rank: int | None = None
    lockstep_ranks: int = 0
    runner: str = GENERATE
    pooling: PoolingFacts | None = None
    routed_experts: RoutedExpertsForm | None = None
    has_watermark: bool = False
    model_type: str = ""  # of config.json; empty if it names none

    @property
    def limits(self) -> RequestLimits:
        """The limits that requests are validated against."""
        return RequestLimits(
            served_model_names=self.served_model_names,
            vocab_size=self.vocab_size,
            max_model_len=self.max_model_len,
            max_logprobs=self.max_logprobs,
            scheduling_policy=self.scheduling_policy,
            eos_token_ids=frozenset(self.eos_token_ids),
            dtype=self.dtype,
            prompt_embeds_size=self.prompt_embeds_size,
            accepts_media=self.accepts_images or self.accepts_videos or self.accepts_audio,
            encoder_tokens=self.encoder_tokens,
            frames_per_token=self.frames_per_token,
            max_image_tokens=self.max_num_batched_tokens if self.bidirectional_images else None,
            image_window=self.image_window,
            routed_experts=self.routed_experts,
            has_watermark=self.has_watermark,
        )

    def summary(self) -> str:
        """The startup log line: what is served, and how much fits."""
        tokens = self.kv_cache_tokens
        invariance = "batch-invariant" if self.batch_invariant else "not batch-invariant"
        kernels = f" (kernels: {self.cpu_kernels})" if self.cpu_kernels else ""
        opening = f"{self.architecture} in {self.dtype} on {self.device}{kernels}, {invariance}"
        if self.pooling is not None:
            return f"{opening}: {self._pooled(self.pooling)}"
        if self.runner == ENCODE:
            return f"{opening}: encodes images, videos and audio for other workers"
        return (
            f"{opening}: KV cache of {tokens:,} tokens, room for {tokens / self.max_model_len:.2f} requests of the "
            f"full {self.max_model_len:,} tokens at once{self._states()}{self._draft()}{self._host_tier()}"
        )

    def _pooled(self, facts: PoolingFacts) -> str:
        values = f"{facts.num_labels:,} classes" if facts.num_labels else f"vectors of {facts.embedding_size:,} values"
        return (
            f"serves pooling for {', '.join(facts.tasks)} ({facts.pooling_type}; {values}), with sequences of up to "
            f"{self.max_model_len:,} tokens and {self.max_num_batched_tokens:,} tokens per step"
        )

    def _states(self) -> str:
        if not self.state_bytes:
            return ""
        saved = f", and the prefix cache has room for {self.num_snapshots:,} more" if self.num_snapshots else ""
        size = f"{self.state_bytes / 2**20:,.1f} MiB"
        return f"; the states of its recurrent layers take {size} for {self.max_num_seqs} sequences{saved}"

    def _draft(self) -> str:
        mebibytes = self.draft_cache_bytes / 2**20
        return f"; {mebibytes:,.1f} MiB of its memory are for the draft model" if self.draft_cache_bytes else ""

    def _host_tier(self) -> str:
        if not self.num_host_blocks:
            return ""
        states = f" and {self.num_host_snapshots:,} states" if self.num_host_snapshots else ""
        return f"; host memory has room for {self.num_host_blocks:,} blocks{states} that it forgets"


def make_model_info(
    folder: Path,
    model: ModelOptions,
    options: EngineOptions,
    spec: KvCacheSpec,
    size: KvCacheSize,
    defaults: GenerationDefaults,
) -> ModelInfo:
    """Creates the model info from the options, the loaded model in `folder`, and its generation config."""
    eos_token_ids = tuple(sorted(token for token in defaults.eos_token_ids if token < spec.vocab_size))
    transfer = options.cache.transfer()
    return ModelInfo(
        served_model_names=tuple(model.served_names),
        model=model.model,
        architecture=spec.architecture,
        max_model_len=size.max_model_len,
        vocab_size=spec.vocab_size,
        dtype=spec.dtype,
        device=spec.device,
        block_size=spec.block_size,
        num_kv_blocks=size.num_blocks,
        kv_cache_tokens=size.num_tokens,
        max_num_seqs=options.scheduler.most_sequences,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        eos_token_ids=eos_token_ids,
        max_logprobs=_max_logprobs(options.generation.max_logprobs, spec.vocab_size),
        tensor_parallel_size=options.parallel.tensor_parallel_size,
        attention_backend=spec.attention_backend,
        scheduling_policy=options.scheduler.scheduling_policy,
        **fingerprints(folder, options, spec, eos_token_ids)._asdict(),
        default_sampling=dict(defaults.sampling),
        prompt_embeds_size=spec.embedding_size if options.generation.enable_prompt_embeds else 0,
        accepts_images=spec.accepts_images,
        accepts_videos=spec.accepts_videos,
        accepts_audio=spec.accepts_audio,
        encoder_tokens=spec.encoder_tokens,
        frames_per_token=spec.frames_per_token,
        bidirectional_images=spec.bidirectional_images,
        image_window=min(filter(None, spec.windows), default=None) if spec.bidirectional_images else None,
        cpu_kernels=spec.cpu_kernels,
        batch_invariant=spec.batch_invariant,
        state_bytes=spec.state_bytes,
        num_snapshots=size.num_snapshots,
        num_host_blocks=size.num_host_blocks,
        num_host_snapshots=size.num_host_snapshots,
        kv_role=transfer.role,
        kv_connector=next((each.kv_connector or "" for each in (transfer.remote, *transfer.exchanges) if each), ""),
        ec_role=options.images.encoding().ec_role or "",
        max_loras=options.lora.max_loras if options.lora.enable_lora else 0,
        draft_cache_bytes=spec.draft_bytes_per_block * size.num_blocks,
        data_parallel_rank=options.parallel.data_parallel_rank,
        lockstep_ranks=spec.lockstep_ranks,
        routed_experts=spec.routed_experts,
        has_watermark=options.watermark.watermark() is not None,
        model_type=str(find_model_config(folder, options.form).get("model_type") or ""),
    )


def _max_logprobs(wanted: int, vocab_size: int) -> int:
    return vocab_size if wanted == -1 else min(wanted, vocab_size)
