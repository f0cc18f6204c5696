"""Data ranks that share experts, and so compute their forward passes at the same time.

Each has requests of its own, and their tokens go through experts on the others: a rank that runs a pass needs all the
others to run one too. So passes come in *waves*. In a wave, each pass begins with an exchange of how many tokens each
rank has for it; a rank without any runs an empty pass, in which it computes other ranks' tokens in its experts and
nothing else. When nobody has any, the wave is over, and all ranks wait, without using a processor, until one of them
has tokens: it calls the next wave by its number.

No call is lost and no rank waits alone, whenever who gets work:

1. All ranks leave wave n after the same exchange. What an exchange brings is the same on every rank, as it is one
   collective; and whether the wave is over follows from that alone.
2. A rank enters wave n + 1 only if it has called it, or has heard it called, and a call goes to all ranks. So if any
   rank enters it, all of them get the call.
3. The call may come to a rank that is still in wave n: the caller has seen the last exchange of n end, so this rank has
   given its part of it, will see the same, leave n, and find the call. It is kept until then: `_called` only grows.
4. Whoever is called to a wave that it is in or past, because several have called at once, has done what was asked: it
   compares the numbers. No call of n + 2 can come to a rank in n, since n + 1 cannot end without that rank's part.

So all ranks take part in the same exchanges, in the same order, and between two exchanges all run a pass or none does.

The ranks of one tensor group get their plans one after the other, and an exchange may find some with a plan and some
without. Tokens count only once all ranks of the group have them; until then there is another exchange.

Where layers are in stages, those of the first one exchange, and each stage hands what they find on to the next
(`pass_counts.py`), which runs the same passes and ends the same waves, later: a rank that is told of a pass of its own
has its plan or will have it. The passes of a stage are in the order of the first one's, so nobody waits for good.
Number them through all waves, and take whatever a rank waits for in the pass `k` of stage `s`:

* the stage before, for its counts or hidden states: pass k of stage s - 1;
* the other ranks of the stage, for their parts of a sum or their tokens: pass k of stage s, which they come to when
  they are through with pass k - 1, and the stages before with pass k;
* in the first stage, tokens that the last has sampled, and anywhere masks and plans, which are made of such tokens:
  some pass before k, of the last stage at most;
* the stage behind, which is to take what was sent some passes ago: a pass before k.

All of these come before (k, s) in the order of passes first and stages then, so of the ranks that wait the first one
in that order waits for nobody. A stage of its own order, whose ranks exchanged for themselves, could wait in a circle:
a rank for its own hidden states within a pass, and those for another data rank, which waits for a token that it is kept
from computing by that same pass.

A wave may be over in the first stage, and another one called, while stages behind are in the one before: they enter
waves one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
import torch.distributed as dist

from engine_svc.parallel.layout import ParallelLayout
from engine_svc.parallel.lifeline import Kind, Lifeline, Switchboard
from engine_svc.parallel.pass_counts import PassCounts

_HEAR_SECONDS = 2.0


class PeerLost(Exception):
    """Another rank of the group has ended; the text names it."""


class Lockstep:
    """A rank's part in waves. One thread makes the passes; calls come in another.

    Attributes:
        counts: of each data rank, the tokens of the present pass.
        is_running: whether a wave is under way here.
        is_cut: whether the present pass runs as two halves, on all ranks: see dual_batch.py.
        is_awaited: whether the next pass is this rank's, and the stage before has begun it: its plan is on its way.
    """

    def __init__(
        self, layout: ParallelLayout, rank: int, group: dist.ProcessGroup, passes: PassCounts, host: str
    ) -> None:
        """
        Args:
            group: of all ranks, for tensors on the host.
            host: of the first rank, as the others reach it.
        """
        self._layout, self._index, self._passes = layout, rank, passes
        self._data_rank = layout.coordinates(rank).data
        self.counts = [0] * layout.data
        self.is_running = self.is_cut = self.is_awaited = False
        self._wave = 0
        self._called = 0
        self._all_ready, self._any_lost = threading.Event(), threading.Event()
        self._leaving: set[int] = set()
        self._lost = ""
        self._on_call: Callable[[], None] = lambda: None
        self._on_loss: Callable[[str], None] = lambda who: None
        self._switchboard = None if self._index else Switchboard(host, layout.num_ranks)
        port = torch.tensor([self._switchboard.port if self._switchboard else 0])
        dist.broadcast(port, 0, group=group)
        self._line = Lifeline((host, int(port)), self._index, self._hear)

    def watch(self, on_call: Callable[[], None], on_loss: Callable[[str], None]) -> None:
        """Says what to do, in another thread, when a wave is called or a rank leaves; and when one has ended, of which
        it gets the name. That may have been before."""
        self._on_call, self._on_loss = on_call, on_loss
        if self._lost:
            on_loss(self._lost)

    def meet(self, seconds: float) -> None:
        """Waits until all ranks are here: loading takes each its own time.

        Raises:
            PeerLost: one has ended, or does not come.
        """
        self._line.say(Kind.READY)
        if not self._all_ready.wait(seconds) or self._lost:
            raise PeerLost(self._lost or f"the other data-parallel ranks have not loaded the model in {seconds:g} s")

    def explain(self, error: Exception) -> Exception:
        """Why a collective has failed: a rank that is lost, if one is, of which this one is about to hear."""
        return PeerLost(self._lost) if self._any_lost.wait(_HEAR_SECONDS) else error

    def leave(self) -> None:
        """Says that this rank will have no tokens any more. It goes on taking part until all say so."""
        self._leaving.add(self._index)
        self._line.say(Kind.LEAVING)

    @property
    def is_over(self) -> bool:
        """Whether no rank will have tokens any more."""
        return len(self._leaving) == self._layout.num_ranks

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank says what there is to do, and is not told."""
        return self._passes.is_first

    def close(self) -> None:
        """Ends the line; to be called once it is over."""
        self._passes.settle()
        self._line.close()
        if self._switchboard is not None:
            self._switchboard.close()

    def is_called(self) -> bool:
        """Whether there is a wave to enter that this rank is not in; enters it."""
        if self._called <= self._wave:
            return False
        self._enter()
        return True

    def _enter(self) -> None:
        self._wave += 1
        self.is_running = True

    def take_turn(self, num_tokens: int, run_empty: Callable[[], None], *, cuts: bool = False) -> None:
        """Returns when the next pass is this rank's, of so many tokens; until then it runs empty ones.

        Args:
            cuts: it is to be cut, if those of all others that have tokens are, too.
        """
        while True:
            if not self.is_running and not self.is_called():
                self._enter()
                if self.is_first_stage:  # whose plan will come, too: stages behind need only wait for its wave
                    self._line.say(Kind.WAVE, self._wave)
            if self._next(num_tokens, cuts)[self._data_rank]:
                return
            if any(self.counts):
                run_empty()

    def stand_by(self, run_empty: Callable[[], None]) -> None:
        """One pass of a wave, for which this rank has no plan: an empty one. If it should have one, see `is_awaited`;
        and there may be none yet, or the wave be over."""
        counts = self._next(0, cuts=True)
        self.is_awaited = bool(counts[self._data_rank])
        if any(counts) and not self.is_awaited:
            run_empty()

    def _next(self, num_tokens: int, cuts: bool) -> list[int]:
        """The tokens of each data rank's next pass."""
        if self.is_awaited:
            self.is_awaited = False
            return self.counts
        found = self._passes.next(num_tokens, cuts)
        self.counts, self.is_cut, self.is_running = found.counts, found.is_cut, not found.is_over
        return self.counts

    def _hear(self, kind: Kind, number: int) -> None:
        match kind:
            case Kind.READY:
                self._all_ready.set()
            case Kind.WAVE:
                self._called = max(self._called, number)
                self._on_call()
            case Kind.LEAVING:
                self._leaving.add(number)
                self._on_call()
            case Kind.LOST:
                self._lose(number)

    def _lose(self, index: int) -> None:
        if index == self._index or self._lost or self.is_over:
            return
        at = self._layout.coordinates(index)
        what = "has left" if index in self._leaving else "is lost"
        self._lost = f"data-parallel rank {at.data} {what} (rank {index} of {self._layout.num_ranks})"
        self._any_lost.set()
        self._all_ready.set()
        self._on_loss(self._lost)
