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
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
import torch.distributed as dist

from engine_svc.parallel.layout import ParallelLayout
from engine_svc.parallel.lifeline import Kind, Lifeline, Switchboard

_HEAR_SECONDS = 2.0


class PeerLost(Exception):
    """Another rank of the group has ended; the text names it."""


class Lockstep:
    """A rank's part in waves. One thread makes the passes; calls come in another.

    Attributes:
        counts: of each data rank, the tokens of the present pass.
        is_running: whether a wave is under way here.
        is_cut: whether the present pass runs as two halves, on all ranks: see dual_batch.py.
    """

    def __init__(
        self, layout: ParallelLayout, ranks: tuple[int, ...], rank: int, group: dist.ProcessGroup, host: str
    ) -> None:
        """
        Args:
            ranks: that share experts, of which `rank` is this one.
            group: of these, for tensors on the host.
            host: of the first of them, as the others reach it.
        """
        self._layout, self._ranks, self._index, self._group = layout, ranks, ranks.index(rank), group
        self._data_rank = layout.coordinates(rank).data
        self.counts = [0] * layout.data
        self.is_running = self.is_cut = False
        self._wave = 0
        self._called = 0
        self._all_ready, self._any_lost = threading.Event(), threading.Event()
        self._leaving: set[int] = set()
        self._lost = ""
        self._on_call: Callable[[], None] = lambda: None
        self._on_loss: Callable[[str], None] = lambda who: None
        self._switchboard = None if self._index else Switchboard(host, len(ranks))
        port = torch.tensor([self._switchboard.port if self._switchboard else 0])
        dist.broadcast(port, ranks[0], group=group)
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
        return len(self._leaving) == len(self._ranks)

    def close(self) -> None:
        """Ends the line; to be called once it is over."""
        self._line.close()
        if self._switchboard is not None:
            self._switchboard.close()

    def is_called(self) -> bool:
        """Whether there is a wave to enter that this rank is not in; enters it."""
        if self._called <= self._wave:
            return False
        self._wave, self.is_running = self._called, True
        return True

    def take_turn(self, num_tokens: int, run_empty: Callable[[], None], *, cuts: bool = False) -> None:
        """Returns when the next pass is this rank's, of so many tokens; until then it runs empty ones.

        Args:
            cuts: it is to be cut, if those of all others that have tokens are, too.
        """
        if not self.is_running and not self.is_called():
            self._wave += 1
            self.is_running = True
            self._line.say(Kind.WAVE, self._wave)
        while not self._exchange(num_tokens, cuts)[self._data_rank]:
            if any(self.counts):
                run_empty()

    def stand_by(self, run_empty: Callable[[], None]) -> None:
        """One exchange of a wave, in which this rank has no tokens, and the empty pass behind it if there is any."""
        self._exchange(0, cuts=True)
        if any(self.counts):
            run_empty()

    def _exchange(self, num_tokens: int, cuts: bool) -> list[int]:
        """The tokens of each data rank's next pass."""
        mine = torch.tensor([num_tokens, int(cuts)])
        gathered = [torch.empty_like(mine) for _ in self._ranks]
        dist.all_gather(gathered, mine, group=self._group)
        found = torch.stack(gathered)
        self.is_running = bool(found[:, 0].any())
        of_ranks = found.view(self._layout.data, self._layout.tensor, 2).amin(1)
        self.counts = of_ranks[:, 0].tolist()
        self.is_cut = all(cut for count, cut in of_ranks.tolist() if count)
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
        at = self._layout.coordinates(self._ranks[index])
        what = "has left" if index in self._leaving else "is lost"
        self._lost = f"data-parallel rank {at.data} {what} (rank {self._ranks[index]} of {self._layout.num_ranks})"
        self._any_lost.set()
        self._all_ready.set()
        self._on_loss(self._lost)
