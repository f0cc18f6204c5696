"""One rank of a worker: loads the model, allocates the cache, runs steps."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Sequence

import msgspec
import torch

from engine_svc.attention.base import AttentionBackend, AttentionMetadata, Prepared
from engine_svc.attention.native import NativeBackend
from engine_svc.block_stores.base import BlockStore
from engine_svc.block_stores.host_memory import HostMemory
from engine_svc.layer_groups import group_layers
from engine_svc.layers.embedding import EmbeddedRows
from engine_svc.loader.draft import Target, load_draft
from engine_svc.loader.folder import weights_folder
from engine_svc.loader.model import load_model
from engine_svc.memory import touch_ahead
from engine_svc.models.attention import AnyLayerCache, LayerCache, layer_cache
from engine_svc.models.decoder import Decoder
from engine_svc.parallel.group import ParallelGroups
from engine_svc.plan import (
    EndedTransfer,
    KvCacheSpec,
    NewSequence,
    SamplingPlan,
    ScheduledSequence,
    StepPlan,
    StepResult,
    TokenMasks,
    Transfers,
)
from engine_svc.recurrence.base import StateMetadata
from engine_svc.runner.adapters import StepAdapters
from engine_svc.runner.answers import Answers
from engine_svc.runner.batch import FlatBatch, SlotBuffers
from engine_svc.runner.drafting import Drafting
from engine_svc.runner.expert_passes import ExpertPasses
from engine_svc.runner.graphs import CudaCapture, PaddedShapes, graph_sizes
from engine_svc.runner.inputs import InputBuffers, Room
from engine_svc.runner.memory import kv_cache_bytes, token_budget
from engine_svc.runner.native_calls import ExactShapes, NativeCapture
from engine_svc.runner.pending import BegunStep, Ended, PendingStep, StepTimer
from engine_svc.runner.recorded import Capture, Forward, RecordedSteps, Shapes
from engine_svc.runner.stage_link import StageLink
from engine_svc.runner.states import StateCache
from engine_svc.runner.step_halves import StepHalves
from engine_svc.runner.threads import bind_threads
from engine_svc.sampling.acceptance import TypicalAcceptance
from engine_svc.sampling.custom import load_processors
from engine_svc.sampling.isolation import blame
from engine_svc.sampling.sampler import Sampler
from engine_svc.sampling.truncation import ALL_LIMITS
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from quire.options.speculative import LOOKUP_METHODS
from quire.sampling import SamplingParameters

logger = logging.getLogger(__name__)

_RECORDED_QUERY_LEN = 16  # on a CPU, steps in which a sequence has more new tokens are not recorded


class Runner:
    """Order of calls: construct (loads the weights), `profile`, `spec`, `allocate`, `step`…

    Attributes:
        passes: where others take part in them.
    """

    def __init__(
        self, model: ModelOptions, options: EngineOptions, groups: ParallelGroups, device: torch.device
    ) -> None:
        """
        Raises:
            StartupError: the model cannot be found, read or supported.
        """
        self._options = options
        self._device = device
        self._num_ranks = groups.layout.num_ranks
        self._lockstep_ranks = groups.layout.data
        self._isolates = False  # one sequence's fault from the others: not while it warms up, and one rank only
        if device.type == "cpu":
            at, layout = groups.layout.coordinates(groups.rank), groups.layout
            bind_threads(options.kernels, at.pipeline * layout.tensor + at.tensor, layout.tensor * layout.pipeline)
        processors = load_processors(options.generation.logits_processors)  # before the weights, which take long
        loaded = load_model(weights_folder(model, options.load), options, groups, device)
        self.passes = ExpertPasses(loaded.model, groups, options.parallel.experts.balancing())
        self._halves = StepHalves(options.parallel.dual_batch, groups)
        self._dual_batch = groups.dual_batch
        self._model, self._facts, self._attention = loaded.model, loaded.facts, loaded.attention
        self._dtype, self._max_model_len = loaded.dtype, loaded.max_model_len
        self._batch_invariant = loaded.batch_invariant
        self._token_budget = options.scheduler.max_num_batched_tokens or token_budget(device)
        stage = self._model.stage
        self._groups = group_layers(self._facts.attention_windows, stage.layers)
        self._group_size = max(len(group.layers) for group in self._groups)
        max_num_seqs = options.scheduler.max_num_seqs
        self._buffers = SlotBuffers(
            max_num_seqs,
            self._max_model_len,
            self._attention.shape.block_tokens,
            len(self._groups),
            device,
            self._dtype,
            self._attention.shape.part,
        )
        self._link = StageLink(groups, stage, self._facts.hidden_size, self._buffers, device, self._dtype)
        self._num_stages = groups.layout.pipeline
        self._adapters = StepAdapters(loaded.adapters, max_num_seqs, self._token_budget)
        self._answers: Answers | None = None  # those of the last stage
        if stage.is_last:
            sampler = Sampler(
                max_num_seqs, self._facts.vocab_size, device, options.generation.logprobs_mode,
                processors, self._attention.kernels, _acceptance(options),
            )  # fmt: skip
            drafting = self._make_drafting(Target(loaded, model, options, groups.of_draft(), device), sampler)
            self._answers = Answers(
                self._model, self._facts.hidden_size, sampler, self._buffers, self._adapters, drafting
            )
        # One for each layer of a group; the groups' blocks lie side by side in it.
        self._caches: list[torch.Tensor] = []
        self._state_form = loaded.states
        self._states: StateCache | None = None
        self._store: BlockStore | None = None
        self._recorded: RecordedSteps | None = None

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
            load_draft(config, target), self._buffers, sampler, self._options.scheduler.max_num_seqs,
            self._token_budget, self._device,
        )  # fmt: skip

    def profile(self) -> None:
        """On a GPU, runs a step of the whole token budget over a cache just large enough and one of all sequences, then
        forgets them: what is available after it can be given to the cache."""
        if self._device.type != "cuda":
            return
        blocks = -(-min(self._token_budget, self._max_model_len) // self._attention.shape.block_tokens)
        self._allocate(blocks * len(self._groups), num_states=1)
        self._warm_up(blocks * len(self._groups))
        # There is room for the states of one.
        self.warm_up_drawing(1 if self._state_form.shapes else self._options.scheduler.max_num_seqs)
        self.release_caches()
        torch.cuda.empty_cache()

    def release_caches(self) -> None:
        """Gives the KV cache back, and with it states, the host's tier and recorded steps. `allocate` is next."""
        self._caches, self._states, self._store, self._recorded = [], None, None, None
        if self._drafting:
            self._drafting.release()
        self._isolates = False
        if self._answers is not None:
            self._answers.forgives = False

    def settle(self) -> None:
        """Waits for what is under way between ranks."""
        self._link.settle()

    def close(self) -> None:
        """Ends what runs beside the steps."""
        self._adapters.close()
        self._dual_batch.close()

    def spec(self) -> KvCacheSpec:
        """What the control side must know."""
        sequences = self._options.scheduler.max_num_seqs
        state_bytes = self._state_form.bytes_per_sequence * sequences
        later_bytes = self._attention.decoding_bytes(sequences, sequences * self._max_model_len)
        return KvCacheSpec(
            architecture=self._facts.architecture,
            dtype=str(self._dtype).removeprefix("torch."),
            device=_device_name(self._device),
            vocab_size=self._facts.vocab_size,
            max_model_len=self._max_model_len,
            bytes_per_block=self._attention.bytes_per_block(self._group_size) + self._draft_bytes_per_block,
            available_bytes=kv_cache_bytes(self._options.cache, self._device, state_bytes, later_bytes),
            attention_backend=self._attention.name,
            block_size=self._attention.shape.block_tokens,
            max_num_batched_tokens=self._token_budget,
            windows=tuple(group.window for group in self._groups),
            embedding_size=self._facts.embedding_size or self._facts.hidden_size,
            cpu_kernels=self._cpu_kernels(),
            batch_invariant=self._batch_invariant,
            state_bytes=state_bytes,
            adapter_modules=self._adapters.modules,
            draft_bytes_per_block=self._draft_bytes_per_block,
            lockstep_ranks=self._lockstep_ranks,
            num_stages=self._num_stages,
        )

    @property
    def _draft_bytes_per_block(self) -> int:
        return self._drafting.bytes_per_block if self._drafting else 0

    def _cpu_kernels(self) -> str:
        if self._device.type != "cpu":
            return ""
        return self._attention.kernels.level if self._attention.kernels else "torch"

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """Allocates the KV cache and its tier in host memory, warms the kernels up, and records steps."""
        self._allocate(num_blocks, self._options.scheduler.max_num_seqs)
        if num_host_blocks:
            self.connect(lambda attention, caches: HostMemory(attention, caches, num_host_blocks))
        self._warm_up(num_blocks)
        if self._device.type == "cuda":
            self.warm_up_drawing(self._options.scheduler.max_num_seqs)
        if isinstance(self._model, Decoder) and not self._options.kernels.enforce_eager:
            self._record_steps()
        touch_ahead(self._all_caches)
        # What layers have done to states cannot be undone: a step with them is not run again.
        self._isolates = self._num_ranks == 1 and not self._state_form.shapes
        if self._answers is not None:
            self._answers.forgives = True

    def connect(self, make_store: Callable[[AttentionBackend, Sequence[torch.Tensor]], BlockStore]) -> None:
        """Gives the allocated caches to the store of a connector, which moves blocks from now on."""
        self._store = make_store(self._attention, self._all_caches)

    @property
    def _all_caches(self) -> list[torch.Tensor]:
        """The draft model's too."""
        return [*self._caches, *(self._drafting.caches if self._drafting else ())]

    def _allocate(self, num_blocks: int, num_states: int) -> None:
        self._caches = self._attention.allocate(num_blocks, self._group_size)
        if self._drafting:
            self._drafting.allocate(num_blocks)
        self._states = StateCache(self._state_form, num_states, self._device)

    def _warm_up(self, num_blocks: int) -> None:
        """A prefill and a decode over the cache."""
        capacity = num_blocks // len(self._groups) * self._attention.shape.block_tokens
        tokens = min(self._token_budget, self._max_model_len, capacity)
        if self._device.type == "cpu":
            tokens = min(tokens, 32)
        count = -(-tokens // self._attention.shape.block_tokens)
        blocks = [list(range(group * count, (group + 1) * count)) for group in range(len(self._groups))]
        token_ids = torch.randint(
            self._facts.vocab_size, (tokens,), generator=torch.Generator().manual_seed(0)
        ).tolist()
        prompt = NewSequence(0, token_ids, tokens, 0, blocks, SamplingPlan(SamplingParameters(temperature=0.0)))
        scaling = self._options.cache.calculate_kv_scales
        drafts = 2 if self._drafting else 0
        with self._attention.calculate_scales() if scaling else contextlib.nullcontext():
            self.step(StepPlan(0, [prompt], [ScheduledSequence(0, 0, tokens, 1, [], num_wanted_drafts=drafts)]))
        self.step(StepPlan(0, [], [ScheduledSequence(0, tokens - 1, 1, 1, [], num_wanted_drafts=drafts)]))

    def warm_up_drawing(self, sequences: int) -> None:
        """A step in which so many sequences decode, and draw with all that limits them: of what that takes, nothing is
        compiled while others wait. What is cached of them, in one block, means nothing."""
        slots, blocks = range(min(sequences, self._token_budget)), [[group] for group in range(len(self._groups))]
        new = [NewSequence(slot, [0], 1, 0, blocks, SamplingPlan(ALL_LIMITS)) for slot in slots]
        self.step(StepPlan(0, new, [ScheduledSequence(slot, 0, 1, 1, []) for slot in slots]))

    def _record_steps(self) -> None:
        if why := self.passes.why_not_recorded:
            logger.info("steps are not recorded: %s", why)
            return
        if self._device.type == "cuda":
            speculation = self._options.speculative.chosen()
            self.make_graphs(CudaCapture(), 1 + speculation.most_tokens if speculation else 1)
        elif isinstance(self._attention, NativeBackend) and self._attention.kernels:
            shapes = ExactShapes(_RECORDED_QUERY_LEN, self._max_model_len)
            self._make_recorded(NativeCapture(self._attention.kernels), shapes, self._room(_RECORDED_QUERY_LEN))
            if self._drafting:
                self._record_draft(self._drafting, NativeCapture(self._attention.kernels), shapes)

    @torch.inference_mode()
    def _record_draft(self, drafting: Drafting, capture: Capture, shapes: Shapes) -> None:
        drafting.record(capture, shapes, self._room(_RECORDED_QUERY_LEN))

    def make_graphs(self, capture: Capture, query_len: int = 1) -> None:
        """Records graphs of one new token a sequence and of so many: a few sizes now, the others when they come up."""
        sizes = graph_sizes(self._options.kernels.cuda_graph_sizes, self._options.scheduler.max_num_seqs)
        shapes = PaddedShapes(sizes, self._max_model_len, sorted({1, query_len}), self._attention.can_decode_together)
        self._make_recorded(capture, shapes, self._room(query_len))

    def _room(self, query_len: int) -> Room:
        """For so many new tokens of each sequence."""
        sequences = self._options.scheduler.max_num_seqs
        blocks = -(-self._max_model_len // self._attention.shape.block_tokens)
        received = self._facts.hidden_size if self._link.takes_hidden_states else 0
        return Room(sequences, sequences * query_len, blocks, len(self._groups), received, self._dtype)

    @torch.inference_mode()
    def _make_recorded(self, capture: Capture, shapes: Shapes, room: Room) -> None:
        buffers = InputBuffers(room, self._options.scheduler.max_num_seqs, self._device)
        self._recorded = RecordedSteps(
            lambda inputs: self._forward(*inputs), capture, shapes, buffers, has_states=bool(self._state_form.shapes)
        )

    def step(self, plan: StepPlan) -> StepResult:
        """Runs the plan; see StepResult."""
        return self.launch(plan).result()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> PendingStep:
        """Runs the plan behind those launched before; on a GPU, returns before it is done. See `begin`."""
        return self.finish(self.begin(plan))

    @torch.inference_mode()
    def begin(self, plan: StepPlan) -> BegunStep:
        """Runs the plan as far as no token is sampled. The next call is `finish`."""
        timer = StepTimer(self._device)
        self._adapters.begin(plan.adapters)
        ended = Ended(self._transfer(plan.transfers), self._adapters.take_read())
        if self._drafting:
            self._drafting.follow(plan)
        if not plan.scheduled:
            timer.mark()
            return BegunStep(plan, timer, ended)
        self._link.take_tokens(plan)
        failed: dict[int, str] = {}
        for sequence in plan.new_sequences:
            self._add(sequence, failed)
        batch = self._buffers.flatten(plan)
        is_cut = self.passes.begin(
            plan.num_tokens, cuts=self._halves.wants(plan, has_adapters=self._adapters.is_used(batch))
        )
        batch = dataclasses.replace(batch, received=self._link.receive(len(batch.token_ids)))
        if is_cut:
            batch = self._buffers.cut(batch)
        hidden = self._compute_rows(plan, batch, failed)
        self.passes.end()
        timer.mark()
        self._link.send(plan, batch, hidden)
        waited = self._link.take_waited_seconds() if self._num_stages > 1 else None
        return BegunStep(plan, timer, ended, batch, hidden, failed, waited)

    def _add(self, sequence: NewSequence, failed: dict[int, str]) -> None:
        self._buffers.add(sequence)
        self._adapters.add(sequence)
        if self._answers is not None:
            self._answers.add(sequence, failed)

    @torch.inference_mode()
    def finish(self, step: BegunStep, masks: TokenMasks | None = None) -> PendingStep:
        """Samples, with the masks that the plan awaits."""
        if step.batch is None or step.hidden is None:
            return PendingStep(step)
        if self._answers is None:
            step.timer.mark()
            return PendingStep(step)
        pending, rows = self._answers.make(step, step.batch, step.hidden, masks)
        self._link.return_tokens(rows)
        return pending

    def _transfer(self, transfers: Transfers) -> list[EndedTransfer]:
        if self._store is None:
            return []
        self._store.begin(transfers)
        return self._store.take_ended()

    def _compute_rows(self, plan: StepPlan, batch: FlatBatch, failed: dict[int, str]) -> torch.Tensor:
        """The hidden states of a batch, all at once; where that raises, of each sequence apart.

        What only some of them raise then is their own fault, and the others go on; and so is what all of them raise, if
        the model still runs a token of no meaning. Several ranks would lose each other: they raise.
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
            found[sequence.slot] if sequence.slot in found else some.new_zeros(sequence.num_new_tokens, some.shape[1])
            for sequence in plan.scheduled
        ])  # fmt: skip

    def _probe(self, sequence: ScheduledSequence) -> torch.Tensor:
        """Hidden states of token 0 where a sequence that has failed would have had its last one."""
        last = sequence.num_computed_tokens + sequence.num_new_tokens - 1
        where = msgspec.structs.replace(sequence, num_computed_tokens=last, num_new_tokens=1, new_block_ids=[])
        batch = self._buffers.flatten(StepPlan(0, [], [where]))
        return self._run(dataclasses.replace(batch, token_ids=torch.zeros_like(batch.token_ids), embedded=None))

    def _compute_apart(self, plan: StepPlan, failed: dict[int, str]) -> dict[int, torch.Tensor]:
        """By slot, the hidden states of the sequences that do not raise. Their blocks are in the tables already."""
        found = {}
        for sequence in plan.scheduled:
            alone = msgspec.structs.replace(sequence, new_block_ids=[])
            try:
                found[sequence.slot] = self._run(self._buffers.flatten(StepPlan(plan.step, [], [alone])))
            except Exception as error:
                failed[sequence.slot] = blame(sequence.slot, "the model cannot run it", error)
        return found

    def _compute(self, batch: FlatBatch) -> torch.Tensor:
        """[tokens, hidden_size]; what was replayed is there only until the next step."""
        if batch.halves is not None:
            first, second = batch.halves
            return torch.cat(self._dual_batch.run(lambda: self._run(first), lambda: self._run(second)))
        hidden = self._recorded.run(batch, self._adapters) if self._recorded and batch.embedded is None else None
        return self._run(batch) if hidden is None else hidden

    def _run(self, batch: FlatBatch) -> torch.Tensor:
        forward = self._forward(
            batch.token_ids, batch.positions, batch.metadata, batch.states, batch.received, batch.embedded
        )
        with self._adapters.rows(batch):
            return forward()

    def _forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        metadata: list[AttentionMetadata],
        states: StateMetadata,
        received: torch.Tensor | None = None,
        embedded: EmbeddedRows | None = None,
    ) -> Forward:
        """A forward pass over these inputs, ready to run."""
        caches = self._layer_caches([self._attention.prepare(each) for each in metadata], states)
        return lambda: self._model.forward(token_ids, positions, caches, embedded, received)

    def _layer_caches(self, prepared: list[Prepared], states: StateMetadata) -> list[AnyLayerCache]:
        """For each layer of the stage; `prepared` is by group."""
        attended = {
            layer: LayerCache(cache, ready)
            for group, ready in zip(self._groups, prepared, strict=True)
            for layer, cache in zip(group.layers, self._caches, strict=False)
        }
        kept = {} if self._states is None else self._states.layers(states)
        return [layer_cache(attended.get(layer), kept.get(layer)) for layer in self._model.stage.layers]


def _acceptance(options: EngineOptions) -> TypicalAcceptance | None:
    speculation = options.speculative.chosen()
    typical = speculation and speculation.typical_acceptance
    return TypicalAcceptance(*typical) if typical else None


def _device_name(device: torch.device) -> str:
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else "cpu"
