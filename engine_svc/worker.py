"""One worker: a model, loaded by an executor, served by an engine in its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from engine_svc.adapters.registry import AdapterRegistry
from engine_svc.adapters.targets import TargetModules
from engine_svc.config_formats.registry import find_model_config
from engine_svc.core.adapters import ServedAdapters
from engine_svc.core.administration import Administration
from engine_svc.core.engine import Engine, EngineFacts
from engine_svc.core.loop import EngineLoop, Sink, still_loading
from engine_svc.core.stepped import SteppedEngine
from engine_svc.core.weight_transfer import Trainer, WeightTransfer
from engine_svc.encoding_worker import build_encoding
from engine_svc.executor.base import Executor
from engine_svc.fingerprint import Fingerprints, fingerprints
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.kv_cache.connectors.pulled_storage import PulledStorage, Puller
from engine_svc.kv_cache.connectors.shared_storage import SharedStorage
from engine_svc.kv_cache.sizing import KvCacheSize, fit_sequences, size_kv_cache
from engine_svc.loader.folder import weights_folder
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.read_ahead import read_ahead
from engine_svc.model_info import ModelInfo, make_model_info
from engine_svc.plan import EncodedRows, KvCacheSpec
from engine_svc.pooling_form.architecture import is_pooling
from engine_svc.pooling_worker import build_pooling
from engine_svc.requests.encoding import EncodingRequest
from engine_svc.requests.generation_config import read_generation_defaults
from engine_svc.requests.outputs import EngineLoad
from engine_svc.requests.pooling import PoolingRequest, validate_pooling
from engine_svc.requests.processors import RequestedProcessors
from engine_svc.requests.request import GenerationRequest
from engine_svc.requests.validation import validate
from engine_svc.scheduler.drafter import Drafter
from engine_svc.scheduler.media_pulls import MediaPuller
from engine_svc.speculative.registry import make_speculation
from engine_svc.speculative.vocabulary import check_vocabulary
from engine_svc.structured.grammars import Grammars, unknown_vocabulary
from quire.errors import Conflict, FailedPrecondition, InvalidRequest, StartupError
from quire.images import Image, check_images
from quire.options.ec_transfer import PRODUCER
from quire.options.engine import EngineOptions
from quire.options.lora import ENABLE_FLAG, TARGETS_FLAG
from quire.options.model import ModelOptions
from quire.options.tokenizer_init import SKIP_FLAG
from quire.runners import GENERATE, wrong_runner
from quire.sleep import Leaving
from quire.structured.vocabulary import Vocabulary, make_vocabulary
from quire.supervised import Stage, report
from quire.tokenizer.modes import find_tokenizer

logger = logging.getLogger(__name__)

_CHANGED = (
    "The files of the served weights are not those that were loaded: they have changed, or other weights are being "
    "loaded. /collective_rpc with reload_weights reads them again."
)


class EngineWorker:
    """The worker, as used by the service. The constructor returns at once; `load` loads the model."""

    def __init__(
        self, executor: Executor, model: ModelOptions, options: EngineOptions, puller: Puller | None = None,
        media_puller: MediaPuller | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            puller: pulls KV blocks from other workers; None if the options do not have it.
            media_puller: has images encoded by other workers; None as before.
        """
        self._executor = executor
        self._model = model
        self._options = options
        self._puller, self._media_puller = puller, media_puller
        self.kv_transfer = options.cache.transfer()
        self._spans_machines = executor.spans_machines or options.parallel.nodes.nnodes > 1
        self._info: ModelInfo | None = None
        self._processors = RequestedProcessors(options.generation.logits_processor_pattern)
        self.loop = EngineLoop(self._build, options.scheduler.max_waiting_requests)
        self.administration = Administration(self.loop, options.upkeep)
        self.transfer = WeightTransfer(self.administration, options, self._spans_machines)
        self._adapters: ServedAdapters | None = None
        # The fingerprints with weights of a folder and version; None means that sequences cannot move to other workers.
        self._fingerprints: Callable[[Path, str], Fingerprints] | None = None
        self._folder = Path()  # of the weights
        self._weight_version = ""
        self._digesting: asyncio.Task[Mapping[str, str]] | None = None  # under way, for all who wait for it
        self._renewals = 0  # number of times that the fingerprint has changed
        self._num_pulls = 0  # of KV blocks, by other workers
        self._has_no_pulls = asyncio.Event()
        self._has_no_pulls.set()

    @property
    def info(self) -> ModelInfo:
        """Information about the served model.

        Raises:
            Unavailable: the model is still loading.
        """
        if self._info is None:
            raise still_loading()
        return self._info

    @property
    def adapters(self) -> ServedAdapters:
        """The low-rank adapters of the model.

        Raises:
            Unavailable: the model is still loading.
        """
        if self._adapters is None:
            raise still_loading()
        return self._adapters

    @property
    def num_ranks(self) -> int:
        """The number of ranks that compute the model together."""
        return self._options.parallel.num_ranks

    def load_now(self) -> EngineLoad:
        """Current load, with the version of the served adapters and the status set by operators.

        Raises:
            Unavailable: the model is still loading.
        """
        max_loras = self._options.lora.max_loras if self._options.lora.enable_lora else 0
        load = self.loop.load()
        status = replace(self.administration.complete(load.status), weight_version=self._weight_version)
        version = self.adapters.version + self._renewals
        return replace(load, adapters_version=version, max_loras=max_loras, status=status)

    async def look_at_weights(self) -> None:
        """Updates the fingerprint after the weights were read again, because their files may have changed."""
        if self._fingerprints is None:
            return
        found = await asyncio.to_thread(self._fingerprints, self._folder, self._weight_version)
        if found.fingerprint != self.info.fingerprint:
            logger.info("the weights have changed")
            self._info, self._renewals = replace(self.info, **found._asdict()), self._renewals + 1

    async def update_weights(self, model_path: str, version: str, leaving: Leaving, wait_seconds: float) -> None:
        """Replaces the weights by those of another checkpoint of the same model.

        Args:
            model_path: absolute path of its folder; empty means that the current one is read again.
            version: name of the weights; empty means that it is the path, or stays as it is if that is empty, too.
            leaving, wait_seconds: see Administration.update_weights, as for further errors.

        Raises:
            InvalidRequest: there is no such checkpoint, or it does not have the served one's form.
            FailedPrecondition: this worker's weights cannot be replaced.
        """
        self._check_replaceable()
        if model_path:
            _check_exists(model_path)
        folder = Path(model_path) if model_path else self._folder
        version, model = version or model_path or self._weight_version, model_path or self.info.model
        await self._replace_weights(folder, version, model, leaving, wait_seconds)

    async def join_trainer(self, trainer: Trainer, seconds: float) -> None:
        """See WeightTransfer.join.

        Raises:
            FailedPrecondition: this worker's weights cannot be replaced.
        """
        self._check_replaceable()
        await self.transfer.join(trainer, seconds)

    async def finish_weight_update(self, version: str, leaving: Leaving, wait_seconds: float) -> None:
        """Replaces the weights by those that the trainer has sent; see WeightTransfer.finish.

        Args:
            version, leaving, wait_seconds: see `update_weights`.
        """
        model = self.info.model
        await self.transfer.finish(
            self._folder,
            lambda folder, draft: self._replace_weights(folder, version, model, leaving, wait_seconds, draft),
        )

    async def name_weights(self, version: str) -> None:
        """Gives the served weights another version, and so another fingerprint."""
        await self.administration.name_weights(version)
        self._weight_version = version
        await self.look_at_weights()

    async def digest_weights(self) -> Mapping[str, str]:
        """SHA-256 of each tensor of the files that the served weights were loaded from, by name.

        Raises:
            FailedPrecondition: they are not in safetensors files.
            Conflict: the files have changed since, or are being replaced.
        """
        if self._digesting is None or self._digesting.done():
            self._digesting = asyncio.create_task(self._digest_weights())
        return await asyncio.shield(self._digesting)

    async def _digest_weights(self) -> Mapping[str, str]:
        from engine_svc.loader.digests import tensor_digests  # which imports torch

        folder, version, changed = self._folder, self._weight_version, Conflict(_CHANGED)
        try:
            if self._fingerprints is not None:
                found = await asyncio.to_thread(self._fingerprints, folder, version)
                if found.fingerprint != self.info.fingerprint:
                    raise changed
            digests = await asyncio.to_thread(tensor_digests, folder, self._options)
        except StartupError as error:
            raise FailedPrecondition(str(error)) from error
        except OSError as error:
            raise changed from error
        if (folder, version) != (self._folder, self._weight_version):
            raise changed
        return digests

    def _check_replaceable(self) -> None:
        if self.info.lockstep_ranks > 1:
            raise FailedPrecondition(
                "Weights cannot be replaced in data-parallel ranks that share experts: the others need this one's in "
                "each step. Start workers with the new weights, and stop these."
            )

    async def _replace_weights(
        self, folder: Path, version: str, model: str, leaving: Leaving, wait_seconds: float, draft_folder: str = ""
    ) -> None:
        await self.administration.check_weights(str(folder))
        read_ahead(create_format(folder, self._options.load))  # requests may be waited for meanwhile
        assert self._fingerprints is not None  # only one-shot engines have none, whose weights the check refuses
        found = await asyncio.to_thread(self._fingerprints, folder, version)

        def replaced() -> None:
            self._folder, self._weight_version = folder, version
            self._info = replace(self.info, **found._asdict(), model=model)
            self._renewals += 1

        await self.administration.update_weights(str(folder), version, leaving, wait_seconds, replaced, draft_folder)

    async def load(self) -> ModelInfo:
        """Loads the model, in the engine's thread.

        Raises:
            StartupError: the model cannot be served; says why and what to do.
        """
        await self.loop.start()
        logger.info(self.info.summary())
        return self.info

    @contextlib.contextmanager
    def being_pulled(self) -> Iterator[None]:
        """While it is open, another worker pulls KV blocks from this one."""
        self._num_pulls += 1
        self._has_no_pulls.clear()
        try:
            yield
        finally:
            self._num_pulls -= 1
            if not self._num_pulls:
                self._has_no_pulls.set()

    async def drain(self) -> None:
        """Refuses new requests; returns when the last one has ended, and nobody pulls KV blocks any more."""
        await self.loop.drain()
        await self._has_no_pulls.wait()

    async def stop(self) -> None:
        """Ends the engine after its current step, and removes weights that were received."""
        await self.loop.stop()
        self.transfer.close()

    def submit(self, request: GenerationRequest, sink: Sink) -> int:
        """Validates a request and submits it; returns its key.

        Raises:
            InvalidRequest, ContextTooLong, NotFound: see `validate`; or `RequestedProcessors.check`. Or the model is
                served for pooling.
            Overloaded, Unavailable: see `EngineLoop.submit`.
        """
        if self.info.runner != GENERATE:
            raise wrong_runner(request.model or self.info.served_model_names[0], self.info.runner)
        if (adapter := self.adapters.find(request.model)) is not None:
            request = replace(request, adapter=adapter)
        validate(request, self.info.limits)
        self._processors.check(request.sampling.logits_processors)
        return self.loop.submit(request, sink)

    def pool(self, request: PoolingRequest, sink: Sink) -> int:
        """Validates a pooling request and submits it; returns its key.

        Raises:
            InvalidRequest, ContextTooLong, NotFound: see `validate_pooling`; or the model is served for generation.
            Overloaded, Unavailable: see `EngineLoop.submit`.
        """
        if self.info.pooling is None:
            raise wrong_runner(request.model or self.info.served_model_names[0], self.info.runner)
        if (adapter := self.adapters.find(request.model)) is not None:
            request = replace(request, adapter=adapter)
        validate_pooling(request, self.info.limits, self.info.pooling)
        return self.loop.submit(request, sink)

    def encode(self, request: EncodingRequest, sink: Sink) -> int:
        """Validates a request to encode an image and submits it; returns its key.

        Raises:
            InvalidRequest: the image is malformed.
            Overloaded, Unavailable: see `EngineLoop.submit`.
        """
        check_images((request.image,), request.image.num_tokens)
        return self.loop.submit(request, sink)

    def _build(self) -> SteppedEngine:
        """Builds the engine. Runs in the engine's thread, as do all calls of the executor."""
        self._options.lora.check()
        if self.kv_transfer.remote is not None and self._spans_machines:
            raise StartupError(
                "GrpcConnector of --kv-transfer-config keeps KV blocks on the machine of the worker, but its ranks may "
                "be on others: use --distributed-executor-backend mp without --nnodes, or SharedStorageConnector."
            )
        try:
            folder = weights_folder(self._model, self._options.load)
            read_ahead(create_format(folder, self._options.load))
            if self._options.images.encoding().ec_role == PRODUCER:
                return self._one_shot(build_encoding(folder, self._model, self._options))
            config = find_model_config(folder, self._options.form)
            if is_pooling(config, folder, self._options.pooling):
                return self._one_shot(build_pooling(folder, config, self._model, self._options))
            defaults = read_generation_defaults(folder, self._options.generation, config)
            self._check_draft(folder)
            spec, options = fit_sequences(self._executor.load(self._model, self._options), self._options)
            size = size_kv_cache(spec, options)
            info = make_model_info(folder, self._model, options, spec, size, defaults)
            if info.ec_role and not info.encoder_fingerprint:
                raise StartupError("--ec-transfer-config: this worker reads text only, so there is nothing to encode.")
            self._folder = folder
            self._fingerprints = lambda place, version: fingerprints(
                place, self._options, spec, info.eos_token_ids, version
            )
            adapters = self._read_adapters(info, spec)
            report(Stage.WARMING_UP)
            self._executor.allocate(size.allocated)
        except BaseException:
            self._executor.close()
            raise
        self._info, self._adapters = info, ServedAdapters(adapters, self.loop)
        facts = _facts(info, spec, size)
        grammars = Grammars(spec.vocab_size, partial(self._load_vocabulary, spec.vocab_size, facts.eos_token_ids))
        return Engine(
            self._executor, options, facts, drafter=self._make_drafter(), connectors=self._make_connectors(),
            grammars=grammars, pull_media=self._pull_media if self._media_puller else None,
        )  # fmt: skip

    def _pull_media(self, image: Image) -> Future[EncodedRows | None]:
        """See PullMedia."""
        assert self._media_puller is not None
        return self._media_puller.pull(image, self.info.encoder_fingerprint)

    def _one_shot(self, built: tuple[SteppedEngine, ModelInfo, KvCacheSpec]) -> SteppedEngine:
        engine, info, spec = built
        adapters = self._read_adapters(info, spec)
        self._info, self._adapters = info, ServedAdapters(adapters, self.loop)
        return engine

    def _make_connectors(self) -> list[KvConnector]:
        num_ranks, remote = self._options.parallel.num_ranks, self.kv_transfer.remote
        return [
            PulledStorage(config, lambda: self.info.fingerprint, self._puller, num_ranks)
            if config is remote and self._puller is not None
            else SharedStorage(config, lambda: self.info.fingerprint, num_ranks)
            for config in self.kv_transfer.exchanges
        ]

    def _make_drafter(self) -> Drafter | None:
        config = self._options.speculative.chosen()
        if config is None:
            return None
        overlaps = self._options.scheduler.async_scheduling and self._executor.max_in_flight > 1
        return make_speculation(config, time.monotonic, overlaps)

    def _check_draft(self, folder: Path) -> None:
        """Checks that a draft model has the model's vocabulary.

        Raises:
            StartupError: see check_vocabulary.
        """
        config = self._options.speculative.chosen()
        if config is not None and config.chosen_method == "draft_model":
            own = find_model_config(folder, self._options.form)
            check_vocabulary(config, self._model, (own.get("text_config") or own).get("vocab_size", 0))

    def _read_adapters(self, info: ModelInfo, spec: KvCacheSpec) -> AdapterRegistry:
        lora = self._options.lora
        if lora.enable_lora and not spec.adapter_modules:
            raise StartupError(
                f"{info.architecture} does not support adapters in this configuration; leave {ENABLE_FLAG} out."
            )
        targets = TargetModules(lora.lora_target_modules)
        if lora.enable_lora and not any(map(targets.have, spec.adapter_modules)):
            raise StartupError(f"{TARGETS_FLAG} {' '.join(targets.ends)}: adapters can change none of these modules.")
        adapters = AdapterRegistry(lora, info.served_model_names, spec.adapter_modules, spec.adapter_heads)
        for module in lora.modules():
            adapters.read_at_start(module)
        return adapters

    def _load_vocabulary(self, vocab_size: int, eos_token_ids: Collection[int]) -> Vocabulary:
        """Loads the vocabulary for structured output.

        Raises:
            StartupError: the tokenizer's files do not exist where the options say.
            FailedPrecondition: this tokenizer's tokens do not support constraints, or the tokenizer is disabled.
        """
        if self._options.generation.skip_tokenizer_init:
            raise unknown_vocabulary(f"it was started with {SKIP_FLAG}")
        return make_vocabulary(find_tokenizer(self._model).read(), vocab_size, sorted(eos_token_ids))


def _facts(info: ModelInfo, spec: KvCacheSpec, size: KvCacheSize) -> EngineFacts:
    return EngineFacts(
        num_blocks=size.num_blocks,
        num_host_blocks=size.num_host_blocks,
        block_size=spec.block_size,
        num_stages=spec.num_stages,
        bidirectional_images=spec.bidirectional_images,
        frames_per_token=spec.frames_per_token,
        windows=spec.windows,
        has_states=spec.state_bytes > 0,
        num_snapshots=size.num_snapshots,
        num_host_snapshots=size.num_host_snapshots,
        snapshot_tokens=size.snapshot_tokens,
        block_bytes=spec.bytes_per_block,
        snapshot_bytes=size.snapshot_bytes,
        max_model_len=size.max_model_len,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        eos_token_ids=frozenset(info.eos_token_ids),
        routed_experts=spec.routed_experts,
    )


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Waits until one of the futures is done; raises its exception, if any."""
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for future in done:
        future.result()


def _check_exists(model_path: str) -> None:
    if not os.path.exists(model_path):  # noqa: PTH110  (unlike Path.exists, False for what cannot be a path)
        raise InvalidRequest(
            f"model_path is {model_path[:200]!r}, which this worker does not find. Nothing has changed.",
            parameter="model_path",
        )
