"""Data-parallel ranks that share experts, and so must run their forward passes at the same time.

Each data rank has its own requests, but their tokens go through experts on the other ranks: a rank that runs a pass
needs all others to run one too. So passes come in *waves*. In a wave, each pass begins with an exchange of how many
tokens each rank has for it. A rank without tokens runs an empty pass, which only computes other ranks' tokens in its
experts. When no rank has tokens, the wave is over, and all ranks wait, without using a CPU, until one of them has
tokens: it calls the next wave by its number.

No call is lost and no rank waits alone, whichever ranks get work at whatever time:

1. All ranks leave wave n after the same exchange. The result of an exchange is the same on every rank, as it is one
   collective, and whether the wave is over follows from that result alone.
2. A rank enters wave n + 1 only if it has called it or has received a call, and a call goes to all ranks. So if any
   rank enters it, all of them get the call.
3. The call may reach a rank that is still in wave n. The caller has seen the last exchange of n end, so this rank has
   contributed to it, will see the same result, leave n, and find the call. It is kept until then: `_called` only grows.
4. A rank that is called to a wave that it is in or past, because several ranks called at once, ignores the call: it
   compares the numbers. No call of n + 2 can reach a rank in n, since n + 1 cannot end without that rank.

So all ranks take part in the same exchanges in the same order, and between two exchanges either all run a pass or none.

The ranks of one tensor group get their plans one after the other, and an exchange may find some with a plan and some
without. Tokens count only once all ranks of the group have them; until then there is another exchange.

With pipeline stages, only the ranks of the first stage exchange counts. Each stage passes the result on to the next one
(`pass_counts.py`), which runs the same passes and ends the same waves, later. A rank that is told of a pass with tokens
of its own has the plan for it or will get it. All stages run passes in the order of the first stage, so there is no
deadlock. To see this, number the passes through all waves. In pass `k` of stage `s`, a rank may wait for

* the previous stage, for its counts or hidden states: pass k of stage s - 1;
* the other ranks of its stage, for their parts of a sum or their tokens: pass k of stage s, which they reach when
  they have finished pass k - 1, and the previous stages pass k;
* tokens that the last stage has sampled (in the first stage), or masks and plans, which depend on such tokens (in any
  stage): a pass before k, of the last stage at most;
* the next stage, which must receive what was sent some passes ago: a pass before k.

All of these come before (k, s) if ordered by pass and then by stage, so the first of the waiting ranks in this order
waits for nothing. If the ranks of each stage exchanged counts themselves, in an order of their own, there could be a
deadlock: within a pass, a rank waits for its own hidden states, and these wait for another data rank, which waits for a
token that the same pass keeps it from computing.

A wave may be over in the first stage, and the next one called, while later stages are still in the one before. They
enter waves one by one.
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
    """Another rank of the group has ended; the message names it."""


class Lockstep:
    """A rank's part in waves. One thread runs the passes; calls arrive in another.

    Attributes:
        counts: tokens of each data rank in the current pass.
        is_running: whether this rank is in a wave.
        is_cut: whether the current pass runs as two halves, on all ranks; see dual_batch.py.
        is_awaited: whether the next pass has tokens of this rank and the previous stage has begun it, but the plan for
            it has not arrived yet.
    """

    def __init__(
        self, layout: ParallelLayout, rank: int, group: dist.ProcessGroup, passes: PassCounts, host: str
    ) -> None:
        """
        Args:
            group: of all ranks, for host tensors.
            passes: the rank's source of counts.
            host: address of the first rank that the others can reach.
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
        """Sets the callbacks, which run in another thread.

        Args:
            on_call: called when a wave is called or a rank leaves.
            on_loss: called with a description of a rank that is lost; at once if one already is.
        """
        self._on_call, self._on_loss = on_call, on_loss
        if self._lost:
            on_loss(self._lost)

    def meet(self, seconds: float) -> None:
        """Waits until all ranks are ready: loading takes some longer than others.

        Raises:
            PeerLost: a rank has ended, or is not ready in time.
        """
        self._line.say(Kind.READY)
        if not self._all_ready.wait(seconds) or self._lost:
            raise PeerLost(
                self._lost or f"the other data-parallel ranks have not loaded the model within {seconds:g} s"
            )

    def explain(self, error: Exception) -> Exception:
        """The reason for a failed collective: PeerLost if a rank is reported lost within a short time, else `error`."""
        return PeerLost(self._lost) if self._any_lost.wait(_HEAR_SECONDS) else error

    def leave(self) -> None:
        """Announces that this rank will have no more tokens. It keeps taking part until all ranks have announced it."""
        self._leaving.add(self._index)
        self._line.say(Kind.LEAVING)

    @property
    def is_over(self) -> bool:
        """Whether all ranks have announced that they will have no more tokens."""
        return len(self._leaving) == self._layout.num_ranks

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank is in the first stage, which determines the passes."""
        return self._passes.is_first

    def close(self) -> None:
        """Closes the connections; call it once `is_over`."""
        self._passes.settle()
        self._line.close()
        if self._switchboard is not None:
            self._switchboard.close()

    def is_called(self) -> bool:
        """Enters the next wave if it has been called; returns whether it has."""
        if self._called <= self._wave:
            return False
        self._enter()
        return True

    def _enter(self) -> None:
        self._wave += 1
        self.is_running = True

    def take_turn(self, num_tokens: int, run_empty: Callable[[], None], *, cuts: bool = False) -> None:
        """Runs empty passes until the next pass includes this rank's tokens, then returns.

        Args:
            cuts: whether this rank agrees to split the pass; it is split if all ranks with tokens agree.
        """
        while True:
            if not self.is_running and not self.is_called():
                self._enter()
                if self.is_first_stage:  # later stages need not call: the first stage will, as it gets the same plan
                    self._line.say(Kind.WAVE, self._wave)
            if self._next(num_tokens, cuts)[self._data_rank]:
                return
            if any(self.counts):
                run_empty()

    def stand_by(self, run_empty: Callable[[], None]) -> None:
        """Takes part in the next exchange of a wave without a plan, and runs an empty pass if others have tokens.

        If the pass includes tokens of this rank, it sets `is_awaited` instead. There may also be no pass yet, or the
        wave may be over.
        """
        counts = self._next(0, cuts=True)
        self.is_awaited = bool(counts[self._data_rank])
        if any(counts) and not self.is_awaited:
            run_empty()

    def _next(self, num_tokens: int, cuts: bool) -> list[int]:
        """Each data rank's tokens in the next pass."""
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
