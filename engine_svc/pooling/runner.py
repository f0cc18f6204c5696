"""Runs whole sequences through a model in one step, and pools the hidden states.

Nothing is kept after a step: keys and values go to a cache with blocks for one layer, which all layers overwrite in
turn.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from engine_svc.layers.embedding import EmbeddedRows
from engine_svc.memory import keep_freed_memory
from engine_svc.models.attention import LayerCache
from engine_svc.models.encoder import Encoder
from engine_svc.native.calls import NotRecordable
from engine_svc.parallel.group import ParallelGroups
from engine_svc.plan import KvCacheSpec
from engine_svc.pooling.adapters import PooledAdapters, are_adapted
from engine_svc.pooling.images import StepImages
from engine_svc.pooling.inputs import FlatBatch, Inputs, Room
from engine_svc.pooling.loading import load_pooled
from engine_svc.pooling.pooler import HiddenStates
from engine_svc.pooling.recorded import RecordedPass
from engine_svc.pooling_form.form import PoolingForm
from engine_svc.pooling_plan import PooledOutput, PooledSequence, PoolingPlan, PoolingResult
from engine_svc.runner.image_parts import ImageParts
from engine_svc.runner.memory import token_budget
from engine_svc.runner.placed_images import PlacedImages
from engine_svc.runner.threads import bind_threads
from engine_svc.transfer import device_name
from quire.errors import StartupError
from quire.media import MediaKind
from quire.options.engine import EngineOptions

logger = logging.getLogger(__name__)

# The default for tokens per step is at least this: on a CPU, many short sequences should share the cost of a step.
_LEAST_BUDGET = 1024
_OVERFLOWED = "its values overflowed; try another --dtype"


class _Placed(NamedTuple):
    """A sequence of a step, with its images if it has any."""

    sequence: PooledSequence
    images: PlacedImages | None


class PoolingRunner:
    """Runs one rank in this process and thread. Call `allocate` before the first step."""

    def __init__(
        self, folder: Path, form: PoolingForm, tokens: Sequence[int], options: EngineOptions, device: torch.device,
        groups: ParallelGroups,
    ) -> None:  # fmt: skip
        """
        Args:
            tokens: ids of `form.classifier_tokens`.

        Raises:
            StartupError: the model cannot be found, read or supported.
        """
        self._device, self._is_alone = device, groups.layout.num_ranks == 1
        bind_threads(options.kernels, device, groups.rank, groups.layout.num_ranks)
        try:
            self._loaded = load_pooled(folder, form, tokens, options, self._device, groups)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise StartupError(f"Not enough memory for the model's weights: {error}") from error
        if self._loaded.attention.kernels is not None:
            # Torch does little here, but its threads would spin for milliseconds afterwards, on the kernels' cores.
            torch.set_num_threads(1)
        loaded = self._loaded
        self._images = StepImages(
            loaded.images,
            loaded.max_model_len,
            device,
            both_ways=loaded.model.config.whole_image_tokens > 0,
            is_alone=self._is_alone,
        )
        given, shape = options.scheduler.max_num_batched_tokens, self._loaded.attention.shape
        self._budget = given or max(_LEAST_BUDGET, token_budget(self._device))
        self._most_sequences = options.scheduler.most_sequences
        added = len(form.added_token_ids) * self._most_sequences  # which the budget does not count
        most = max(self._budget, self._loaded.max_model_len) + added
        self._num_blocks = -(-most // shape.block_size) + min(self._most_sequences, most)
        self._adapters = PooledAdapters(loaded.adapters, most)
        self._cache: torch.Tensor | None = None
        # Recorded passes, by whether they have adapters; None means that they cannot be recorded.
        self._recorded: dict[bool, RecordedPass | None] = {}
        keep_freed_memory()  # from now on, so not memory that loading has freed

    def allocate(self) -> None:
        """Allocates the cache blocks and runs warm-up steps, unless that has been done."""
        if self._cache is None:
            (self._cache,) = self._loaded.attention.allocate(self._num_blocks, 1)
            self._warm_up()

    def release_caches(self) -> None:
        """Frees everything but the weights."""
        self._cache, self._recorded = None, {}

    def close(self) -> None:
        """Stops reading adapters."""
        self._adapters.close()

    def spec(self) -> KvCacheSpec:
        """What the control side must know about the model; there is no KV cache."""
        loaded, config = self._loaded, self._loaded.model.config
        kernels = loaded.attention.kernels
        return KvCacheSpec(
            architecture=config.architecture, dtype=str(loaded.attention.shape.dtype).removeprefix("torch."),
            device=device_name(self._device), vocab_size=config.vocab_size, max_model_len=loaded.max_model_len,
            bytes_per_block=0, available_bytes=0, attention_backend=loaded.attention.name,
            block_size=loaded.attention.shape.block_size, max_num_batched_tokens=self._budget,
            embedding_size=config.hidden_size,
            accepts_images=MediaKind.IMAGE in self._images.kinds,
            accepts_videos=MediaKind.VIDEO in self._images.kinds,
            accepts_audio=MediaKind.AUDIO in self._images.kinds,
            cpu_kernels="" if self._device.type != "cpu" else kernels.level if kernels else "torch",
            batch_invariant=loaded.batch_invariant, adapter_modules=self._adapters.modules,
            adapter_heads=self._adapters.heads, pooling=loaded.spec,
        )  # fmt: skip

    @torch.inference_mode()
    def run(self, plan: PoolingPlan) -> PoolingResult:
        """Runs a step. If the batch raises, each sequence runs alone, and only those that raise then get an error.

        With several ranks, which must all do the same, the step fails instead.

        Raises:
            Exception: no sequence succeeds, of those whose images do not fail.
        """
        start = time.perf_counter()
        self._adapters.begin(plan.adapters)
        placed = self._images.place(plan.sequences)
        outputs: list[PooledOutput | str] = [each if isinstance(each, str) else "" for each in placed]
        fit = {
            index: _Placed(plan.sequences[index], each)
            for index, each in enumerate(placed)
            if not isinstance(each, str)
        }
        found, seconds = self._run([*fit.values()]) if fit else ([], 0.0)
        for index, output in zip(fit, found, strict=True):
            outputs[index] = output
        encoded = len({image.digest for each in plan.sequences for image in each.images})
        milliseconds = (time.perf_counter() - start) * 1000
        return PoolingResult(outputs, seconds * 1000, milliseconds, encoded, self._adapters.take_read())

    def _run(self, sequences: Sequence[_Placed]) -> tuple[list[PooledOutput | str], float]:
        """Returns what each sequence gets, and how many seconds the model took."""
        start = time.perf_counter()
        forward = start
        try:
            hidden = self._forward(sequences)
            forward = time.perf_counter()
            return self._pool(hidden, sequences), forward - start
        except Exception as error:
            if len(sequences) == 1 or not self._is_alone:
                raise
            logger.error("%d sequences cannot run together; each now runs alone", len(sequences), exc_info=error)
            return self._run_apart(sequences), forward - start

    def _run_apart(self, sequences: Sequence[_Placed]) -> list[PooledOutput | str]:
        found: list[PooledOutput | str] = []
        for each in sequences:
            try:
                found += self._pool(self._forward([each]), [each])
            except Exception as error:
                logger.error("a sequence of %d tokens failed", len(each.sequence.token_ids), exc_info=error)
                found.append(f"the model cannot run it ({type(error).__name__})")
        if all(isinstance(each, str) for each in found):
            raise RuntimeError("every sequence of the step failed")
        return found

    def _pool(self, hidden: HiddenStates, placed: Sequence[_Placed]) -> list[PooledOutput | str]:
        sequences = [each.sequence for each in placed]
        found = self._loaded.pooler.pool(hidden, sequences)
        values = torch.cat([each.reshape(-1) for each in found]).cpu().numpy().astype("<f4", copy=False)
        are_finite = bool(np.isfinite(values).all())
        data, start, outputs = values.tobytes(), 0, list[PooledOutput | str]()
        for each, sequence in zip(found, sequences, strict=True):
            end = start + each.numel()
            is_finite = are_finite or bool(np.isfinite(values[start:end]).all())
            output = PooledOutput(data[4 * start : 4 * end], tuple(each.shape), len(sequence.token_ids))
            outputs.append(output if is_finite else _OVERFLOWED)
            start = end
        return outputs

    def _forward(self, sequences: Sequence[_Placed]) -> HiddenStates:
        batch = FlatBatch.of([each.sequence for each in sequences], self._loaded.attention.shape.block_size)
        batch = self._images.put(batch, [each.images for each in sequences])
        own = [each.sequence for each in sequences]
        hidden = self._replay(batch, own)
        if hidden is None:
            with self._adapters.rows(own):
                hidden = self._pass(batch.inputs(self._device), batch.embedded)
        return HiddenStates(hidden, torch.from_numpy(batch.starts))

    def _replay(self, batch: FlatBatch, sequences: Sequence[PooledSequence]) -> torch.Tensor | None:
        """The hidden states by a recorded pass; None if the model's code must run."""
        if not (is_adapted := are_adapted(sequences)):
            return self._run_recorded(batch, is_adapted)
        if not self._adapters.are_recordable or len(batch.token_ids) > self._budget:
            return None
        with self._adapters.rows(sequences, self._budget):
            return self._run_recorded(batch, is_adapted)

    def _run_recorded(self, batch: FlatBatch, is_adapted: bool) -> torch.Tensor | None:
        if is_adapted not in self._recorded:
            self._recorded[is_adapted] = self._record()
        found = self._recorded[is_adapted]
        return None if found is None else found.run(batch)

    def _pass(self, inputs: Inputs, embedded: EmbeddedRows | None = None) -> torch.Tensor:
        """Runs a forward pass; returns hidden states [tokens, hidden_size]."""
        model, prepare = self._loaded.model, self._loaded.attention.prepare
        assert self._cache is not None
        if embedded is not None and embedded.both_ways is not None:
            prepare = ImageParts(prepare, embedded.both_ways).prepare
        caches = [LayerCache(self._cache, prepare(inputs.metadata))] * model.config.num_layers
        further = (inputs.types,) if isinstance(model, Encoder) else (embedded,)
        hidden: torch.Tensor = model(inputs.token_ids, inputs.positions, caches, *further)
        return hidden

    def _record(self) -> RecordedPass | None:
        """Records passes. None if a pass does anything but call kernels."""
        attention = self._loaded.attention
        if attention.kernels is None:
            return None
        room = Room(
            min(self._most_sequences, self._budget), self._budget, -(-self._budget // attention.shape.block_size)
        )
        try:
            with torch.inference_mode():
                return RecordedPass(self._pass, attention.kernels, room)
        except NotRecordable as error:
            logger.debug("steps are not recorded: %s cannot be", error)
            return None

    def _warm_up(self) -> None:
        """Runs a step of each task: a short one on a CPU, one with the whole token budget on a GPU."""
        length = min(self._loaded.max_model_len, 16 if self._device.type == "cpu" else self._budget)
        tokens = [index % self._loaded.model.config.vocab_size for index in range(length)]
        form = self._loaded.form
        for task in form.tasks:
            self.run(PoolingPlan(0, [PooledSequence(tokens, [], task, 0, True, True)]))
