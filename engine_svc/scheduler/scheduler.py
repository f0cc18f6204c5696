"""The scheduler: one token budget per step, running sequences first, then waiting ones.

There is no prefill or decode phase. Every sequence has a number of known tokens and a number of computed ones; each
step computes known tokens that are not computed yet, as far as the token budget and free blocks allow.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.kv_cache.manager import KvCacheManager
from engine_svc.kv_cache.prefix import Prefix
from engine_svc.requests.outputs import AdapterLoad
from engine_svc.requests.sequence import Sequence, SequenceState
from engine_svc.scheduler.adapter_slots import AdapterSlots
from engine_svc.scheduler.batch import Batch
from engine_svc.scheduler.drafter import Drafter
from engine_svc.scheduler.image_encodings import ImageEncodings
from engine_svc.scheduler.lookups import Lookups
from engine_svc.scheduler.queue import WaitingQueue
from engine_svc.scheduler.shares import StepShares
from quire.options.scheduler import SchedulerOptions

# Most long prompts that one pass over the waiting queue skips, to bound the cost of planning a step.
_MOST_PASSED_OVER = 64
_NO_DRAFTS: tuple[int, ...] = ()


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.order


class Scheduler:
    """Owns the slots, the waiting and running queues, and, through the KV cache manager, the blocks of all sequences.

    There is no deadlock: only sequences that fit the cache are admitted, and when blocks run out the last sequence in
    the policy's order gives its own back. So the first in order always makes progress.
    """

    def __init__(
        self,
        kv_cache: KvCacheManager,
        options: SchedulerOptions,
        token_budget: int,
        drafter: Drafter | None = None,
        lookahead: int = 0,
        adapters: AdapterSlots[Sequence] | None = None,
        num_stages: int = 1,
        *,
        whole_images: bool = False,
        images: ImageEncodings | None = None,
    ) -> None:
        """
        Args:
            token_budget: most tokens that a step computes.
            lookahead: positions after its known tokens for which a sequence gets blocks, if enough are free.
            adapters: None means that no adapters are served.
            num_stages: pipeline stages, each of which may have a step under way while another step is planned.
            whole_images: a step computes whole images only: see ModelFacts.whole_image_tokens.
            images: by default, one that keeps a step's tokens of them.
        """
        self.adapters: AdapterSlots[Sequence] = adapters or AdapterSlots()
        self.images = images or ImageEncodings(token_budget)
        self._kv_cache = kv_cache
        self._options = options
        self._whole_images = whole_images
        splits_prompts = options.enable_chunked_prefill and not whole_images
        self._shares = StepShares(num_stages, token_budget, options.most_sequences, splits_prompts)
        self._drafter = drafter
        self._lookahead = lookahead
        self.is_paused = False  # steps run no sequences; transfers and adapter changes continue
        self._is_drafting = False  # tokens are drafted for the step that is being planned
        self._waiting = WaitingQueue()
        self._awaiting: dict[BlockTable, Sequence] = {}  # sequences waiting for blocks from a connector
        self._running: list[Sequence] = []  # in the policy's order
        self._free_slots = list(range(options.most_sequences - 1, -1, -1))
        self._step = 0
        self._unscheduled_prefill_tokens = 0
        self.lookups = Lookups(kv_cache.block_size)
        self.num_preempted = 0  # sequences that were preempted and wait
        self.preemptions = 0

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a slot, including those still waiting for blocks, an adapter or images."""
        aside = self.adapters.num_set_aside + self.images.num_set_aside
        return len(self._waiting) + len(self._awaiting) + aside

    @property
    def num_waiting_tokens(self) -> int:
        """Known tokens not computed yet; for partly computed prompts, as of the last step."""
        aside = sum(each.num_uncomputed_tokens for each in (*self.adapters.set_aside, *self.images.set_aside))
        # All sequences of the last step may have failed in it or been preempted since.
        in_part = self._unscheduled_prefill_tokens if self._running else 0
        return self._waiting.num_uncomputed_tokens + aside + in_part

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.is_transferring or (not self.is_paused and (self.num_waiting > 0 or self._may_compute))

    @property
    def _may_compute(self) -> bool:
        """Whether any running sequence has tokens to compute: some may wait for more of their recordings."""
        return any(each.num_ready_tokens > 0 for each in self._running)

    @property
    def is_transferring(self) -> bool:
        """Whether transfers or encoding images need steps to advance, even if these compute nothing."""
        return self._kv_cache.is_transferring or self.adapters.is_changing or self.images.is_changing

    @property
    def num_steps(self) -> int:
        """Steps planned since start."""
        return self._step

    def add(self, sequence: Sequence) -> None:
        """Adds a sequence to the waiting queue."""
        sequence.state = SequenceState.WAITING
        self._waiting.push(sequence)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Adds a sequence to the waiting queue that shares the blocks of its parent's computed prompt."""
        child.table = self._kv_cache.fork(parent.table, parent.num_prompt_tokens)
        child.advance(len(child.table) * self._kv_cache.block_size)
        self.add(child)

    def finish(self, sequence: Sequence) -> None:
        """Ends a sequence in any state and frees everything that it holds."""
        if sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
            self._release_slot(sequence)
        elif sequence.state in (SequenceState.WAITING, SequenceState.PREEMPTED):
            self._leave(sequence)
            self.num_preempted -= sequence.state is SequenceState.PREEMPTED
        self.adapters.release(sequence)
        self._kv_cache.free(sequence.table)
        if self._drafter is not None:
            self._drafter.forget(sequence)
        sequence.follower = None
        sequence.state = SequenceState.FINISHED

    def _leave(self, sequence: Sequence) -> None:
        """Removes a sequence from the waiting queue, or from those waiting for blocks, an adapter or images."""
        if self.images.forget(sequence) or self.adapters.forget(sequence):
            return
        if self._awaiting.pop(sequence.table, None) is None:
            self._waiting.remove(sequence)
        else:
            self._kv_cache.abandon(sequence.table)

    def schedule(self, now: float = 0.0) -> Batch:
        """Plans the next step. Its sequences have slots, and blocks for the tokens that they compute."""
        self._shares.begin(self._running, self._waiting.num_uncomputed_tokens)
        batch = Batch(self._step, self._shares.budget, now)
        if self._drafter is not None:
            self._drafter.begin([each for each in self._running if not self._is_under_way(each)])
            self._is_drafting = self._drafter.is_active
        if self._awaiting:
            self._take_arrivals()
        if not self.is_paused:
            for sequence in (*self.adapters.settle(), *self.images.settle()):
                self._waiting.push(sequence)
            self._schedule_running(batch)
            self._schedule_waiting(batch)
            if self._kv_cache.snapshot_tokens:
                batch.save_states(self._kv_cache.place_snapshot)
        batch.is_transferring = self.is_transferring
        if batch.has_work:
            batch.transfers = self._kv_cache.take_transfers()
            batch.adapters = self.adapters.take_changes()
            batch.images = self.images.take_changes()
        self._shares.end(batch)
        self._step += 1
        self._unscheduled_prefill_tokens = batch.unscheduled_prefill_tokens
        return batch

    def _take_arrivals(self) -> None:
        """Queues the sequences that no longer wait for blocks; tokens of the blocks that arrived count as computed."""
        for table in self._kv_cache.take_arrivals():
            sequence = self._awaiting.pop(table)
            sequence.advance(len(table) * self._kv_cache.block_size)
            if sequence.num_computed_tokens:  # otherwise it is looked up again
                self.lookups.count(len(sequence.token_ids), table.hits)
            self._waiting.push(sequence)

    def _schedule_running(self, batch: Batch) -> None:
        index, allocate, decoding = 0, self._kv_cache.allocate, self._shares.most_decoding
        while index < len(self._running) and batch.budget > 0:
            sequence = self._running[index]
            missing = sequence.num_ready_tokens
            may_compute = missing > 1 or (missing and decoding)
            if may_compute and not (sequence.num_pending_tokens and self._waits_for_tokens(sequence)):
                decoding -= missing == 1
                count, drafts = 1, _NO_DRAFTS
                wanted, is_partial = 0, False
                if missing > 1 or self._is_drafting:
                    # A long prompt leaves one token for every later sequence, so that no stream stalls.
                    share = max(1, batch.budget - (len(self._running) - index - 1))
                    count = self._count(sequence, sequence.num_computed_tokens, missing, share, batch.budget)
                    if not count:
                        index += 1
                        continue
                    wanted, is_partial = self._wanted(sequence), missing > count
                    count = self._cut(sequence, sequence.num_computed_tokens, count, missing)
                    drafts = self._draft(sequence, share - count) if count == missing else _NO_DRAFTS
                end = sequence.num_computed_tokens + count + len(drafts)
                room = self._room(sequence, end, wanted) if wanted or self._lookahead else end
                blocks = allocate(sequence.table, room)
                if blocks is None:
                    blocks = self._preempt_for(sequence, end, batch)
                if blocks is None:  # the sequence was last in order and has itself been preempted
                    break
                if is_partial:
                    self._note_partial(batch, missing)
                batch.add(sequence, count, blocks, drafts, wanted)
            index += 1

    def _waits_for_tokens(self, sequence: Sequence) -> bool:
        """Whether a sequence with pending tokens cannot be scheduled before they are known.

        That is the case if its last token is pending, if its step is still in a pipeline stage, if a drafter must see
        the pending tokens, or if drafts are being verified: then more than one token is pending, and it is not known
        yet how many are accepted.
        """
        if sequence.num_missing_tokens < 1 or sequence.num_pending_tokens > 1 or self._is_under_way(sequence):
            return True
        return self._is_drafting and self._drafter is not None and self._drafter.waits_for(sequence)

    def _is_under_way(self, sequence: Sequence) -> bool:
        return sequence.num_pending_tokens > 0 and self._shares.is_under_way(sequence, self._step)

    def _draft(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        """Drafted tokens to verify after the known ones, if free blocks suffice: drafts never preempt a sequence."""
        if sequence.num_pending_tokens or sequence.owner.recording is not None:
            return _NO_DRAFTS
        most = min(most, sequence.num_missing_tokens - 1)
        if every := self._kv_cache.snapshot_tokens:  # states are saved after known tokens only
            most = min(most, every - 1 - len(sequence.token_ids) % every)
        drafts = self._drafter.propose(sequence, most)[:most] if self._drafter and most > 0 else _NO_DRAFTS
        if drafts and sequence.follower is not None:
            drafts = drafts[: sequence.follower.count_fitting(drafts)]
        fits = self._kv_cache.can_extend(sequence.table, len(sequence.token_ids) + len(drafts))
        return drafts if fits else _NO_DRAFTS

    def _wanted(self, sequence: Sequence) -> int:
        """How many tokens the ranks should draft after what a step samples."""
        return self._drafter.wanted(sequence, sequence.num_missing_tokens - 2) if self._drafter is not None else 0

    def _room(self, sequence: Sequence, end: int, wanted: int) -> int:
        """Positions to allocate blocks for in a step that computes up to `end`: more if more tokens will be drafted.

        No sequence is preempted for the additional positions.
        """
        room = min(end + max(wanted, self._lookahead), sequence.max_length)
        return room if room > end and self._kv_cache.can_extend(sequence.table, room) else end

    def _count(self, sequence: Sequence, computed: int, missing: int, most: int, left: int) -> int:
        """Tokens that a sequence computes in a step: a long prompt is limited, to leave budget for others.

        0 means that an image comes next for which the step has too few tokens left.

        Args:
            most: tokens that the sequence should take at most.
            left: tokens left in the step, which it may take for an image that must be computed whole.
        """
        count = min(missing, most)
        if self._is_long(missing):
            count = min(count, self._options.long_prefill_token_threshold)
        if count == missing or not (self._options.disable_chunked_mm_input or self._whole_images):
            return count
        request = sequence.owner.request
        runs = request.image_runs if self._whole_images else (range(each.offset, each.end) for each in request.images)
        split = next((run for run in runs if run.start < computed + count < run.stop), None)
        if split is None:
            return count
        if split.start > computed:
            return split.start - computed
        if not self._whole_images:
            return count  # an image that fills the step cannot be kept whole
        return split.stop - computed if split.stop - computed <= left else 0

    def _cut(self, sequence: Sequence, computed: int, count: int, missing: int) -> int:
        """How many of `count` tokens a sequence computes, so that states of recurrent layers can be saved."""
        has_whole_images = self._options.disable_chunked_mm_input and sequence.owner.request.images
        if not self._options.enable_chunked_prefill or has_whole_images:
            return count
        return self._kv_cache.cut(sequence.table, computed, count, is_last=count == missing)

    def _is_long(self, missing: int) -> bool:
        return 0 < self._options.long_prefill_token_threshold < missing

    def _note_partial(self, batch: Batch, missing: int) -> None:
        batch.partial_prefills += 1
        batch.long_partial_prefills += self._is_long(missing)

    def _schedule_waiting(self, batch: Batch) -> None:
        passed_over = 0
        while len(self._waiting) > passed_over and self._free_slots and batch.budget > 0 and not batch.preempted:
            sequence = self._waiting.at(passed_over)
            too_many_long = batch.long_partial_prefills >= self._options.max_long_partial_prefills
            if too_many_long and self._is_long(sequence.num_uncomputed_tokens):
                if passed_over == _MOST_PASSED_OVER:
                    break
                passed_over += 1  # shorter ones after it need not wait for running long ones
                continue
            if not self.adapters.admit(sequence):
                self._set_aside(sequence)
                continue
            found = self._lookup(sequence)
            computed = sequence.num_computed_tokens + len(found) * self._kv_cache.block_size
            if not self.images.admit(sequence, computed):
                self._set_aside(sequence)
                continue
            if found.is_awaited:
                if not self._make_room(sequence, found):
                    break
                self._await(sequence, found)
                continue
            missing = sequence.num_ready_tokens - (computed - sequence.num_computed_tokens)
            if missing > batch.budget and not self._options.enable_chunked_prefill:
                break
            count = self._count(sequence, computed, missing, batch.budget, batch.budget)
            if not count or (missing > count and batch.partial_prefills >= self._options.max_num_partial_prefills):
                break
            if not self._make_room(sequence, found):
                break
            if missing > count:
                self._note_partial(batch, missing)
            count = self._cut(sequence, computed, count, missing)
            self._kv_cache.allocate(sequence.table, computed + count, found)
            self._count_lookup(sequence, found)
            self._start(sequence, computed)
            wanted = self._wanted(sequence)
            self._kv_cache.allocate(sequence.table, self._room(sequence, computed + count, wanted))
            snapshot = self._kv_cache.begin_states(sequence.table)
            batch.add_new(sequence, count, wanted, self.images.start(sequence, computed), snapshot)

    def _set_aside(self, sequence: Sequence) -> None:
        """Removes a sequence that waits for its adapter or images from the queue, and frees its blocks for others."""
        self._waiting.remove(sequence)
        self._kv_cache.free(sequence.table)
        sequence.roll_back()

    def _lookup(self, sequence: Sequence) -> Prefix:
        """The cached blocks that a waiting sequence can begin with; none if it already holds blocks."""
        if len(sequence.table) or sequence.wants_prompt_logprobs or sequence.owner.recording is not None:
            return Prefix()
        may_await = len(self._awaiting) < self._options.most_sequences
        return self._kv_cache.lookup(sequence.table, sequence.token_ids, may_await)

    def _await(self, sequence: Sequence, found: Prefix) -> None:
        """Moves a sequence out of the queue while it waits for blocks from a connector."""
        self._waiting.remove(sequence)
        self._awaiting[sequence.table] = sequence
        self._kv_cache.await_blocks(sequence.table, found)

    def _stop_awaiting(self, after: Sequence) -> None:
        """Makes the last sequence that awaits blocks continue without them, if it is ordered after `after`.

        Used when blocks are short. The blocks become free once the connector has released them.
        """
        last = max(self._awaiting.values(), key=_order, default=None)
        if last is not None and last.order > after.order:
            self._leave(last)
            self._kv_cache.free(last.table)
            self._waiting.push(last)

    def _make_room(self, sequence: Sequence, found: Prefix) -> bool:
        """Makes room for all known tokens of a waiting sequence (half a prompt would soon be preempted), if it can."""
        while not self._kv_cache.has_room(sequence.table, len(sequence.token_ids), found):
            holder = self._waiting.last_holder()
            if self._running:
                return False
            if holder is None or holder is sequence:
                self._stop_awaiting(after=sequence)
                return False
            self._release_blocks(holder)
        return True

    def _count_lookup(self, sequence: Sequence, found: Prefix) -> None:
        """Counts the cache hits of a starting sequence; one that already holds blocks was not looked up."""
        if not sequence.num_computed_tokens and not sequence.wants_prompt_logprobs:
            self.lookups.count(len(sequence.token_ids), found.hits)

    def _start(self, sequence: Sequence, num_computed_tokens: int) -> None:
        """Moves a sequence from waiting to running."""
        self._waiting.remove(sequence)
        self.num_preempted -= sequence.state is SequenceState.PREEMPTED
        if sequence.state is SequenceState.WAITING and sequence is sequence.owner.sequences[0]:
            sequence.owner.cached_prompt_tokens = min(num_computed_tokens, sequence.num_prompt_tokens)
        sequence.advance(num_computed_tokens - sequence.num_computed_tokens)
        sequence.slot = self._free_slots.pop()
        sequence.state = SequenceState.RUNNING
        insort(self._running, sequence, key=_order)

    def _preempt_for(self, sequence: Sequence, num_tokens: int, batch: Batch) -> list[list[int]] | None:
        """Allocates blocks for a running sequence, preempting the last in order; None if that was this sequence."""
        while (blocks := self._kv_cache.allocate(sequence.table, num_tokens)) is None:
            victim = self._running[-1]
            holder = self._waiting.last_holder()
            if holder is not None and (holder.order > victim.order or victim is self._running[0]):
                self._release_blocks(holder)
                continue
            self._stop_awaiting(after=victim)
            self._preempt(victim)
            batch.preempted = True
            if victim is sequence:
                return None
        return blocks

    def _preempt(self, sequence: Sequence) -> None:
        """Takes away slot and blocks; the sequence waits to be recomputed (its cached blocks may still be found)."""
        self._running.remove(sequence)
        self._release_slot(sequence)
        self.adapters.release(sequence)
        self._kv_cache.free(sequence.table)
        sequence.roll_back()
        sequence.owner.rewind()
        sequence.state = SequenceState.PREEMPTED
        self.num_preempted += 1
        sequence.owner.preemptions += 1
        self.preemptions += 1
        if sequence.wants_prompt_logprobs:
            sequence.owner.prompt_logprobs.clear()
        self._waiting.push(sequence)

    def preempt_all(self) -> None:
        """Preempts all sequences: none holds blocks or an adapter any more, and everything is recomputed.

        Only transfers that continue keep their blocks. No step may be under way.
        """
        for sequence in reversed(list(self._running)):
            self._preempt(sequence)
        while (holder := self._waiting.last_holder()) is not None:
            self._release_blocks(holder)
        for sequence in list(self._awaiting.values()):
            self._leave(sequence)
            self._kv_cache.free(sequence.table)
            self._waiting.push(sequence)
        for sequence in (*self._waiting, *self.images.set_aside):
            self.adapters.release(sequence)

    def _release_blocks(self, sequence: Sequence) -> None:
        """Takes away the blocks of a waiting sequence, which will then compute its whole prompt itself."""
        self._waiting.remove(sequence)
        self._kv_cache.free(sequence.table)
        sequence.roll_back()
        self._waiting.push(sequence)

    def _release_slot(self, sequence: Sequence) -> None:
        self.images.recordings.stop(sequence)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1

    def adapter_loads(self) -> tuple[AdapterLoad, ...]:
        """Load of the adapters that are on the device or have sequences. May be called from any thread."""
        if not self.adapters.is_serving:
            return ()
        waiting = (*self._waiting, *list(self._awaiting.values()), *self.adapters.set_aside, *self.images.set_aside)
        return self.adapters.loads(list(self._running), waiting)

    @property
    def _living(self) -> list[Sequence]:
        """All running and waiting sequences."""
        return [*self._running, *self._not_started]

    @property
    def _not_started(self) -> list[Sequence]:
        aside = *self.adapters.set_aside, *self.images.set_aside
        return [*self._waiting, *self._awaiting.values(), *aside]

    def live_tables(self) -> Iterable[BlockTable]:
        """Block tables of all running and waiting sequences, for the integrity check."""
        return [sequence.table for sequence in self._living]

    def check(self) -> None:
        """Verifies that no block and no slot is lost, and that the invariants of all sequences hold.

        Raises:
            RuntimeError: the bookkeeping is inconsistent.
        """
        for sequence in self._living:
            sequence.check(self._kv_cache.block_size)
        self._kv_cache.check(list(self.live_tables()))
        slots = {sequence.slot for sequence in self._running}
        if slots & set(self._free_slots) or len(slots) + len(self._free_slots) != self._options.most_sequences:
            raise RuntimeError("slots of the runner are lost or given twice")
        self.adapters.check(self._living)
        self.images.check(self._not_started)
