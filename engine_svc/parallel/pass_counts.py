"""How many tokens each data rank has for the next pass, as all ranks of a model hear of it, whatever stage they are in.

The ranks of the first stage ask each other. What they find is so for all stages, each of which hands it on to the next
one: so every stage runs the same passes in the same order, though not at the same time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
import torch.distributed as dist

from engine_svc.parallel.layout import Coordinates, ParallelLayout

_TAG = 1  # hidden states and tokens, which the same ranks send each other, have 0
_MOST_UNDER_WAY = 8


@dataclass(frozen=True)
class NextPass:
    """What ranks hear of it.

    Attributes:
        counts: of each data rank, its tokens. There is none without, as where some ranks of a tensor group have tokens
            and others have not yet.
        is_cut: whether it runs as two halves: see dual_batch.py.
        is_over: whether it ends a wave, and no rank has anything to do.
    """

    counts: list[int]
    is_cut: bool
    is_over: bool


class PassCounts:
    """A rank's part in it.

    Attributes:
        is_first: whether the rank is in the first stage, and says what there is to do.
    """

    def __init__(
        self, layout: ParallelLayout, place: Coordinates, stage: dist.ProcessGroup, stages: dist.ProcessGroup | None
    ) -> None:
        """
        Args:
            place: of the rank.
            stage: the ranks of its stage, for tensors on the host.
            stages: of each stage the rank that has this one's place in it, likewise; None where there is one stage.
        """
        self._layout, self._place, self._stage, self._stages = layout, place, stage, stages
        self.is_first, self._is_last = place.pipeline == 0, place.pipeline == layout.pipeline - 1
        self._sent: deque[tuple[dist.Work, torch.Tensor]] = deque()

    def next(self, num_tokens: int, cuts: bool) -> NextPass:
        """The next pass, as the first stage has it.

        Args:
            num_tokens: that the rank has, if it is in that.
            cuts: whether they may be cut.
        """
        found = self._ask(num_tokens, cuts) if self.is_first else self._receive()
        if not self._is_last and (found.is_over or any(found.counts)):
            self._hand_on(found)
        return found

    def settle(self) -> None:
        """Waits until the next stage has all that it was sent."""
        while self._sent:
            self._sent.popleft()[0].wait()

    def _ask(self, num_tokens: int, cuts: bool) -> NextPass:
        """The same on all ranks of the stage, of which each gives its part."""
        mine = torch.tensor([num_tokens, int(cuts)])
        gathered = [torch.empty_like(mine) for _ in range(self._layout.data * self._layout.tensor)]
        dist.all_gather(gathered, mine, group=self._stage)
        found = torch.stack(gathered)
        of_data_ranks = found.view(self._layout.data, self._layout.tensor, 2).amin(1)
        is_cut = all(cut for count, cut in of_data_ranks.tolist() if count)
        return NextPass(of_data_ranks[:, 0].tolist(), is_cut, is_over=not bool(found[:, 0].any()))

    def _receive(self) -> NextPass:
        """At the end of a wave no rank of the stage goes on before all have run its passes."""
        told = torch.empty(self._layout.data + 1, dtype=torch.int64)
        dist.recv(told, group=self._stages, group_src=self._place.pipeline - 1, tag=_TAG)
        *counts, is_cut = told.tolist()
        return NextPass(counts, bool(is_cut), is_over=False) if any(counts) else self._ask(0, cuts=True)

    def _hand_on(self, found: NextPass) -> None:
        told = torch.tensor([*found.counts, int(found.is_cut)])
        work = dist.isend(told, group=self._stages, group_dst=self._place.pipeline + 1, tag=_TAG)
        assert work is not None
        self._sent.append((work, told))
        if len(self._sent) > _MOST_UNDER_WAY:
            self._sent.popleft()[0].wait()
