"""One rank of a worker: loads the model, allocates the KV cache, runs steps."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import time

import msgspec
import numpy as np
import torch

from engine_svc.block_stores.base import BlockStore, NoStore
from engine_svc.block_stores.chosen import MakeStore, chosen_store
from engine_svc.layer_groups import group_layers, most_caches
from engine_svc.loader.draft import Target, load_draft
from engine_svc.loader.folder import weights_folder
from engine_svc.loader.model import has_experts, load_model
from engine_svc.memory import touch_ahead
from engine_svc.models.decoder import Decoder
from engine_svc.parallel.group import ParallelGroups
from engine_svc.plan import CacheSize, KvCacheSpec, ScheduledSequence, StepPlan, StepResult, TokenMasks
from engine_svc.runner import warm_up
from engine_svc.runner.adapters import StepAdapters
from engine_svc.runner.answers import Answers
from engine_svc.runner.batch import FlatBatch, SlotBuffers
from engine_svc.runner.drafting import Drafting
from engine_svc.runner.expert_passes import ExpertPasses
from engine_svc.runner.graph_inputs import GraphInputs
from engine_svc.runner.graphs import CudaCapture, MeasuredCapture, PaddedShapes, graph_sizes, held_by, prompt_sizes
from engine_svc.runner.image_rows import ImageRows
from engine_svc.runner.inputs import Room
from engine_svc.runner.memory import kv_cache_bytes, step_tokens
from engine_svc.runner.native_calls import NotedSteps
from engine_svc.runner.passes import ForwardPasses
from engine_svc.runner.pending import BegunStep, Ended, PendingStep, StepClock, StepTimer
from engine_svc.runner.recorded import Capture, RecordedSteps
from engine_svc.runner.routed_experts import record_routed
from engine_svc.runner.stage_link import StageLink
from engine_svc.runner.states import StateCache
from engine_svc.runner.step_halves import StepHalves
from engine_svc.runner.threads import bind_threads
from engine_svc.sampling.acceptance import TypicalAcceptance
from engine_svc.sampling.custom import load_processors
from engine_svc.sampling.isolation import blame
from engine_svc.sampling.sampler import Sampler
from engine_svc.sampling.watermark import make_watermark
from engine_svc.transfer import device_name
from quire.media import MediaKind
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from quire.options.speculative import LOOKUP_METHODS

logger = logging.getLogger(__name__)


class Runner:
    """Runs one rank's model. Order of calls: construct (loads the weights), `profile`, `spec`, `allocate`, `step`…

    Attributes:
        passes: coordinates forward passes with other ranks that share the model's experts.
    """

    def __init__(
        self, model: ModelOptions, options: EngineOptions, groups: ParallelGroups, device: torch.device
    ) -> None:
        """
        Raises:
            StartupError: the model cannot be found, read or supported.
        """
        self._options, self._device = options, device
        at, layout = groups.layout.coordinates(groups.rank), groups.layout
        self._num_ranks = layout.num_ranks
        self._rank = at.pipeline * layout.tensor + at.tensor  # among those that compute a sequence together
        self._isolates = False  # whether a failing sequence is isolated from the others: single rank, after warm-up
        local = layout.tensor * layout.pipeline // options.parallel.nodes.nnodes
        bind_threads(options.kernels, device, self._rank % local, local)
        processors = load_processors(options.generation.logits_processors)  # before the weights: errors show early
        folder = weights_folder(model, options.load)
        self._lockstep_ranks = groups.layout.data if has_experts(folder, options) else 0
        loaded = load_model(folder, options, groups, device)
        self.passes = ExpertPasses(loaded.model, groups, options.parallel.experts.balancing())
        self._halves = StepHalves(options.parallel.dual_batch, groups)
        self._dual_batch = groups.dual_batch
        self._model, self._facts, self._attention = loaded.model, loaded.facts, loaded.attention
        self._dtype, self._batch_invariant = loaded.dtype, loaded.batch_invariant
        self._max_model_len, self._most_sequences = loaded.max_model_len, options.scheduler.most_sequences
        self._whole_image_tokens = self._facts.whole_image_tokens if loaded.images else 0
        self._token_budget = step_tokens(device, options.scheduler, self._whole_image_tokens)
        stage, shape = self._model.stage, self._attention.shape
        own, per_cache = self._facts.caching(stage.layers), self._attention.layers_per_cache
        self._groups = group_layers(self._facts.attention_windows, own, per_cache, self._attention.itemsize)
        self._state_form, self._product_rows = loaded.states, loaded.product_rows
        self._states_each = options.speculative.most_query_len if self._state_form.shapes else 1  # of a sequence
        self._num_caches = most_caches(self._groups, per_cache)
        self._buffers = SlotBuffers(
            self._most_sequences, self._max_model_len, shape.block_tokens, len(self._groups), device, self._dtype,
            shape.part, ImageRows(loaded.images, device, self._max_model_len, both_ways=self._whole_image_tokens > 0),
            self._states_each,
        )  # fmt: skip
        self._link = StageLink(groups, stage, self._facts.passed_size, self._buffers, device, self._dtype)
        self._num_stages = groups.layout.pipeline
        self._adapters = StepAdapters(loaded.adapters, self._most_sequences, self._token_budget)
        self._answers: Answers | None = None  # only in the last pipeline stage
        if stage.is_last:
            typical = (speculation := options.speculative.chosen()) and speculation.typical_acceptance
            sampler = Sampler(
                self._most_sequences, self._facts.vocab_size, device, options.generation.logprobs_mode,
                processors, self._attention.kernels, TypicalAcceptance(*typical) if typical else None,
                options.generation.return_sampling_mask, make_watermark(options, self._max_model_len, device),
            )  # fmt: skip
            drafting = self._make_drafting(Target(loaded, model, options, groups.of_draft(), device), sampler)
            self._answers = Answers(
                self._model, self._facts.hidden_size, sampler, self._buffers, self._adapters, drafting
            )
        routed = record_routed(loaded, self._groups, options, self._token_budget, device)
        self._forward = ForwardPasses(loaded, self._groups, self._most_sequences, routed)
        # Whether the last layer may skip rows that nothing is sampled from; not if other data ranks count on all rows.
        self._skips_rows = (
            isinstance(self._model, Decoder) and stage.is_last and groups.lockstep is None and routed is None
            and not (self._drafting and self._drafting.reads_features) and not self._facts.keeps_all_rows
        )  # fmt: skip
        self._store: BlockStore = NoStore()
        self._recorded: RecordedSteps | NotedSteps | None = None
        self._later_bytes = 0  # GPU memory that will be taken in addition to what has been taken so far
        self._clock = StepClock()

    @property
    def _drafting(self) -> Drafting | None:
        return None if self._answers is None else self._answers.drafting

    def _make_drafting(self, target: Target, sampler: Sampler) -> Drafting | None:
        config = self._options.speculative.chosen()
        if config is None or config.chosen_method in LOOKUP_METHODS:
            return None
        if config.draft_tensor_parallel_size == 1 and target.groups.tensor.rank:  # the first rank guesses for all
            return None
        return Drafting(
            load_draft(config, target), self._buffers, sampler, self._most_sequences, self._token_budget, self._device
        )  # fmt: skip

    def profile(self) -> None:
        """On a GPU, measures how much memory steps need; what is left can be given to the KV cache.

        Runs the largest steps over a KV cache just large enough for them, records the largest graphs, then drops both.
        """
        if self._device.type != "cuda":
            return
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)  # loading may have taken more than any step
        if self._answers is not None:
            self._answers.reserve(self._max_model_len + 1)
        blocks = -(-min(self._token_budget, self._max_model_len) // self._attention.shape.block_tokens)
        self._allocate(blocks * len(self._groups), num_states=0)  # all sequences share one state
        self.warm_up(blocks * len(self._groups), self._most_sequences)
        needed = torch.cuda.max_memory_reserved(self._device) - sum(cache.nbytes for cache in self._all_caches)
        self._later_bytes = self._measure_graphs()
        self._later_bytes -= torch.cuda.max_memory_reserved(self._device) - needed
        self.release_caches()
        gc.collect()  # recordings and what they were recorded from refer to each other
        torch.cuda.empty_cache()

    def _measure_graphs(self) -> int:
        """Estimated bytes that all graphs will take."""
        if not self._records_steps:
            return 0
        measured = MeasuredCapture(CudaCapture(), lambda: held_by(self._device))
        return measured.total(self.make_graphs(measured, self._options.speculative.most_query_len, most=2))

    def release_caches(self) -> None:
        """Frees the KV cache, states, the host memory tier and recorded steps; `allocate` must be called next."""
        self._store.close()
        self._store = NoStore()
        self._forward.release()
        self._recorded = None
        if self._drafting:
            self._drafting.release()
        self._isolates = False
        if self._answers is not None:
            self._answers.forgives = False

    def settle(self) -> None:
        """Waits until no communication between pipeline stages is under way."""
        self._link.settle()

    def close(self) -> None:
        """Stops the background work of adapters, images and dual batches."""
        self._store.close()
        self._adapters.close()
        self._buffers.images.close()
        self._dual_batch.close()

    def spec(self) -> KvCacheSpec:
        """What the control side must know of the model and its KV cache."""
        sequences, images = self._most_sequences, self._buffers.images
        state_bytes = self._state_form.bytes_per_sequence * sequences * self._states_each
        later_bytes = self._later_bytes + self._attention.decoding_bytes(sequences, sequences * self._max_model_len)
        return KvCacheSpec(
            architecture=self._facts.architecture,
            dtype=str(self._dtype).removeprefix("torch."),
            device=device_name(self._device),
            vocab_size=self._facts.vocab_size,
            max_model_len=self._max_model_len,
            bytes_per_block=self._forward.bytes_per_block(self._num_caches) + self._draft_bytes_per_block,
            available_bytes=kv_cache_bytes(self._options.cache, self._device, state_bytes, later_bytes),
            attention_backend=self._attention.name,
            block_size=self._attention.shape.block_tokens,
            max_num_batched_tokens=self._token_budget,
            windows=tuple(group.window for group in self._groups),
            embedding_size=self._facts.embedding_size or self._facts.hidden_size,
            accepts_images=MediaKind.IMAGE in images.kinds,
            accepts_videos=MediaKind.VIDEO in images.kinds,
            accepts_audio=MediaKind.AUDIO in images.kinds,
            encoder_tokens=self._facts.encoder_tokens,
            frames_per_token=self._facts.frames_per_token,
            bidirectional_images=self._whole_image_tokens > 0,
            cpu_kernels=self._cpu_kernels(),
            batch_invariant=self._batch_invariant,
            state_bytes=state_bytes,
            adapter_modules=self._adapters.modules,
            draft_bytes_per_block=self._draft_bytes_per_block,
            lockstep_ranks=self._lockstep_ranks,
            num_stages=self._num_stages,
            routed_experts=self._forward.routed_form,
        )

    @property
    def _draft_bytes_per_block(self) -> int:
        return self._drafting.bytes_per_block if self._drafting else 0

    def _cpu_kernels(self) -> str:
        kernels = self._attention.kernels
        return "" if self._device.type != "cpu" else kernels.level if kernels else "torch"

    def allocate(self, size: CacheSize) -> None:
        """Allocates the KV cache, its host memory tier and states, warms up the kernels, and records steps."""
        self._most_sequences = size.num_sequences or self._most_sequences
        self._allocate(size.num_blocks, self._most_sequences, size.num_snapshots)
        self.connect(chosen_store(self._options.cache, size, self._rank))
        if self._device.type == "cuda":
            self._record_steps()  # comes first, because it frees memory that steps have taken
            self.warm_up(size.num_blocks, self._most_sequences)
        else:
            self._run_prompt(size.num_blocks)
            self._record_steps()
        touch_ahead(self._all_caches, self._clock.is_idle)
        # Changes of recurrent states cannot be undone, so a step with such states cannot be run again.
        self._isolates = self._num_ranks == 1 and not self._state_form.shapes
        if self._answers is not None:
            self._answers.forgives = True

    def connect(self, make_store: MakeStore) -> None:
        """Creates a connector's store over what is allocated, which moves blocks and saved states from now on."""
        self._store = make_store(self._forward.movable(self._all_caches))

    @property
    def _all_caches(self) -> list[torch.Tensor]:
        """KV caches of the model, its indexers and the draft model, if any."""
        return [*self._forward.all_caches, *(self._drafting.caches if self._drafting else ())]

    def _allocate(self, num_blocks: int, num_states: int, num_snapshots: int = 0) -> None:
        self._forward.allocate(num_blocks, self._num_caches)
        if self._drafting:
            self._drafting.allocate(num_blocks)
        each = self._states_each
        self._forward.states = StateCache(self._state_form, num_states * each, self._device, num_snapshots, each)

    def warm_up(self, num_blocks: int, sequences: int) -> None:
        """Runs the largest steps, with and without adapters, so that kernels are compiled before the first request.

        Args:
            num_blocks: number of blocks in the KV cache.
            sequences: number of sequences in the steps that decode and sample.
        """
        for context in (contextlib.nullcontext, self._adapters.warming)[: 1 + self._adapters.are_served]:
            with context():
                self._run_prompt(num_blocks)
                self._draw(sequences)

    def _run_prompt(self, num_blocks: int) -> None:
        """Runs a prefill over the KV cache, and further steps for every kernel that the attention backend has."""
        capacity = num_blocks // len(self._groups) * self._attention.shape.block_tokens
        tokens = min(self._token_budget, self._max_model_len, capacity)
        if self._device.type == "cpu":
            tokens = min(tokens, warm_up.MOST_CPU_TOKENS)
        prefill, *others = warm_up.prompt_steps(
            tokens, -(-tokens // self._attention.shape.block_tokens), len(self._groups), self._facts.vocab_size,
            num_wanted_drafts=2 if self._drafting else 0,
            query_lens=(*self._product_rows, *self._attention.query_lens),
        )  # fmt: skip
        scaling = self._options.cache.calculate_kv_scales
        with self._attention.calculate_scales() if scaling else contextlib.nullcontext():
            self.step(prefill)
        for plan in others:
            self.step(plan)
        if self._whole_image_tokens:
            self._buffers.images.hold_blank(0, max(1, tokens - 1), self._facts.hidden_size, self._dtype)
            self.step(msgspec.structs.replace(prefill, new_sequences=[]))
        recorded, self._recorded = self._recorded, None  # which has none of the paths that tails are for
        for count, context in self._attention.tails:
            if count <= self._token_budget and count + context <= self._max_model_len:
                self.step(warm_up.tail_step(count, context, self._attention.shape.block_tokens, len(self._groups)))
        self._recorded = recorded

    @torch.inference_mode()
    def _draw(self, sequences: int) -> None:
        slots = range(min(sequences, self._token_budget))
        for plan, masks in warm_up.drawing_steps(slots, len(self._groups), self._facts.vocab_size):
            self.finish(self.begin(plan), masks).result()

    @property
    def _records_steps(self) -> bool:
        is_wanted = isinstance(self._model, Decoder) and not self._options.kernels.enforce_eager
        return is_wanted and self._attention.is_recordable and not self.passes.why_not_recorded

    @torch.inference_mode()
    def _record_steps(self) -> None:
        if why := self.passes.why_not_recorded:
            logger.info("steps are not recorded: %s", why)
        if not self._records_steps:
            return
        if self._device.type == "cuda":
            begin = time.perf_counter()
            count = self.make_graphs(CudaCapture(), self._options.speculative.most_query_len)
            logger.info("recorded %d CUDA graphs in %.1f s", count, time.perf_counter() - begin)
        elif self._attention.records_calls and self._attention.kernels:
            kernels, room = self._attention.kernels, self._room(self._token_budget)
            self._recorded = NotedSteps(
                self._forward.prepare, kernels, room, self._nobodys_slot, self._adapters, skips_rows=self._skips_rows
            )
            if self._drafting:
                self._drafting.note_steps(kernels, room)

    @torch.inference_mode()
    def make_graphs(self, capture: Capture, query_len: int = 1, most: int | None = None) -> int:
        """Records graphs for one and for `query_len` new tokens per sequence, for prompts, and for the draft model.

        Args:
            most: record only this many graphs, the largest ones of the model; None means all, and those of the draft.

        Returns:
            The number of all graphs, whether they were recorded or left out by `most`.
        """
        asked = self._options.kernels.cuda_graph_sizes
        sizes = graph_sizes(asked, self._most_sequences)
        takes_any = self._attention.plan_size(1, 1) and not self._state_form.shapes  # states depend on prompt lengths
        prompts = prompt_sizes(asked, self._token_budget, self._facts.hidden_size) if takes_any else []
        lens, most_positions = sorted({1, query_len}), self._attention.most_positions
        longest = min(self._max_model_len, self._attention.shape.most_chosen or self._max_model_len)
        shapes = PaddedShapes(sizes, longest, lens, most_positions, self._adapters.are_served, prompts)
        room = self._room(max(self._most_sequences * query_len, *prompts, 0))
        self._recorded = RecordedSteps(
            self._forward.prepare, capture, dataclasses.replace(shapes, most=most),
            GraphInputs(room, self._nobodys_slot, self._buffers.token_ids.view(-1), self._attention), self._adapters,
        )  # fmt: skip
        drafts = dataclasses.replace(shapes, prompt_sizes=(), most=None if most is None else 0)
        return len(shapes.all()) + (self._drafting.make_graphs(capture, drafts, room) if self._drafting else 0)

    def _room(self, tokens: int) -> Room:
        """Capacity of input buffers for a total of `tokens` new tokens."""
        sequences = self._most_sequences
        blocks = -(-self._max_model_len // self._attention.shape.block_tokens)
        received = self._facts.hidden_size if self._link.takes_hidden_states else 0
        return Room(sequences, tokens, blocks, len(self._groups), received, self._dtype, self._states_each > 1)

    @property
    def _nobodys_slot(self) -> int:
        return self._forward.states.nobodys_slot if self._forward.states else 0

    def step(self, plan: StepPlan) -> StepResult:
        """Runs the plan; see StepResult."""
        return self.launch(plan).result()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> PendingStep:
        """Runs the plan after those launched before; on a GPU, returns before it is done. See `begin`."""
        return self.finish(self.begin(plan))

    @torch.inference_mode()
    def begin(self, plan: StepPlan) -> BegunStep:
        """Runs the plan up to the hidden states, before anything is sampled. The next call must be `finish`."""
        self._clock.begin()
        timer = StepTimer(self._device)
        self._adapters.begin(plan.adapters)
        images = self._buffers.images.exchange(plan.images)
        self._store.begin(plan.transfers)
        ended = Ended(self._store.take_ended(), self._adapters.take_read(), images)
        if self._drafting:
            self._drafting.follow(plan)
        if not plan.scheduled:
            timer.mark()
            return BegunStep(plan, timer, ended)
        self._link.take_tokens(plan)
        failed = self._buffers.add(plan.new_sequences)
        self._forward.restore_states(plan)
        for sequence in plan.new_sequences:
            self._adapters.add(sequence)
            if self._answers is not None:
                self._answers.expect(sequence)
        batch = self._flatten(plan)
        is_divisible = batch.is_divisible and not self._adapters.is_used(batch)
        is_cut = self.passes.begin(plan.num_tokens, cuts=self._halves.wants(plan, is_divisible=is_divisible))
        batch = dataclasses.replace(batch, received=self._link.receive(batch.num_tokens))
        if is_cut:
            batch = self._buffers.cut(batch)
        hidden = self._compute_rows(plan, batch, failed)
        self._forward.save_states(plan, self._buffers.state_slots)
        self.passes.end()
        routed = self._forward.read_routed(plan, batch, self._buffers) if self._rank == 0 else None
        timer.mark()
        self._link.send(plan, batch, hidden)
        if self._answers is not None:  # while the device computes
            for sequence in plan.new_sequences:
                self._answers.add(sequence, failed)
        waited = self._link.take_waited_seconds() if self._num_stages > 1 else None
        return BegunStep(plan, timer, ended, batch, hidden, failed, routed, waited)

    @torch.inference_mode()
    def finish(self, step: BegunStep, masks: TokenMasks | None = None) -> PendingStep:
        """Samples the step's tokens, with the token masks that the plan awaits."""
        pending = self._sample(step, masks)
        self._clock.end()
        return pending

    def _sample(self, step: BegunStep, masks: TokenMasks | None) -> PendingStep:
        if step.batch is None or step.hidden is None:
            return PendingStep(step)
        if self._answers is None:
            step.timer.mark()
            return PendingStep(step)
        pending, rows = self._answers.make(step, step.batch, step.hidden, masks)
        self._link.return_tokens(rows)
        return pending

    def _flatten(self, plan: StepPlan) -> FlatBatch:
        """Builds a step's batch and decides which rows are needed: with adapters all, as their layers map every row."""
        batch = self._buffers.flatten(plan)
        if self._answers is None or not self._skips_rows or self._adapters.is_used(batch):
            return batch
        lens = self._answers.output_lens(plan.scheduled)
        return batch if lens == batch.query_lens else dataclasses.replace(batch, output_lens=lens)

    def _compute_rows(self, plan: StepPlan, batch: FlatBatch, failed: dict[int, str]) -> torch.Tensor:
        """Computes the hidden states of a batch's output rows together; if that raises, of each sequence separately.

        Sequences that raise on their own then fail, and the others go on. If all of them raise, they fail as well,
        provided that the model can still run a meaningless token; otherwise the error is raised. With several ranks the
        error is always raised, because the ranks would get out of step.
        """
        try:
            return self._compute(batch)
        except Exception as error:
            if not self._isolates:
                raise
            logger.error("%d sequences cannot run together; each now runs alone", len(plan.scheduled), exc_info=error)
        found = self._compute_apart(plan, failed)
        some = next(iter(found.values())) if found else self._probe(plan.scheduled[0])
        return torch.cat([
            found[sequence.slot] if sequence.slot in found else some.new_zeros(int(count), some.shape[1])
            for sequence, count in zip(plan.scheduled, np.diff(batch.output_start), strict=True)
        ])  # fmt: skip

    def _probe(self, sequence: ScheduledSequence) -> torch.Tensor:
        """Hidden states of token 0 at the last position of a failed sequence: shows whether the model still runs."""
        last = sequence.num_computed_tokens + sequence.num_new_tokens - 1
        where = msgspec.structs.replace(sequence, num_computed_tokens=last, num_new_tokens=1, new_block_ids=[])
        batch = self._buffers.flatten(StepPlan(0, [], [where]))
        token_ids = torch.zeros(1, dtype=torch.int64, device=self._device)
        return self._run(dataclasses.replace(batch, token_ids=token_ids, embedded=None))

    def _compute_apart(self, plan: StepPlan, failed: dict[int, str]) -> dict[int, torch.Tensor]:
        """Runs each sequence alone, its blocks being in the tables; by slot, the output rows of those that succeed."""
        found = {}
        for sequence in plan.scheduled:
            alone = msgspec.structs.replace(sequence, new_block_ids=[])
            try:
                batch = self._flatten(StepPlan(plan.step, [], [alone]))
                found[sequence.slot] = batch.outputs_of(self._run(batch))
                self._forward.keep_routed(batch)
            except Exception as error:
                failed[sequence.slot] = blame(sequence.slot, "the model cannot run it", error)
        return found

    def _compute(self, batch: FlatBatch) -> torch.Tensor:
        """Hidden states [outputs, hidden_size]; those of a replayed pass are valid only until the next step."""
        if batch.halves is not None:
            first, second = batch.halves
            hidden = torch.cat(self._dual_batch.run(lambda: self._run(first), lambda: self._run(second)))
            return batch.outputs_of(hidden)
        replayed = self._recorded.run(batch) if self._recorded else None
        hidden = self._run(batch) if replayed is None else replayed
        self._forward.keep_routed(batch)
        return batch.outputs_of(hidden)

    def _run(self, batch: FlatBatch) -> torch.Tensor:
        """Runs the model's code; returns hidden states of the output rows, or of all rows."""
        with self._adapters.rows(batch):
            return self._forward.prepare(batch.inputs, batch.embedded)()
