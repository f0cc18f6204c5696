"""Tells all ranks of a model, in every pipeline stage, how many tokens each data rank has for the next pass.

The ranks of the first stage exchange counts. The result holds for all stages, and each stage passes it on to the next.
So every stage runs the same passes in the same order, though not at the same time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
import torch.distributed as dist

from engine_svc.parallel.layout import Coordinates, ParallelLayout

_TAG = 1  # the same ranks also send each other hidden states and tokens, with tag 0
_MOST_UNDER_WAY = 8


@dataclass(frozen=True)
class NextPass:
    """What ranks are told about the next pass.

    Attributes:
        counts: each data rank's tokens. If all are 0 there is no pass, though some ranks of a tensor group may have
            tokens that others do not have yet.
        is_cut: whether the pass runs as two halves; see dual_batch.py.
        is_over: whether the wave ends, because no rank has anything to do.
    """

    counts: list[int]
    is_cut: bool
    is_over: bool


class PassCounts:
    """A rank's source of the next pass.

    Attributes:
        is_first: whether the rank is in the first stage, which determines the passes.
    """

    def __init__(
        self, layout: ParallelLayout, place: Coordinates, stage: dist.ProcessGroup, stages: dist.ProcessGroup | None
    ) -> None:
        """
        Args:
            place: of the rank.
            stage: group of the ranks of its stage, for host tensors.
            stages: group of the ranks with this one's place in each stage, likewise. None if there is one stage.
        """
        self._layout, self._place, self._stage, self._stages = layout, place, stage, stages
        self.is_first, self._is_last = place.pipeline == 0, place.pipeline == layout.pipeline - 1
        self._sent: deque[tuple[dist.Work, torch.Tensor]] = deque()

    def next(self, num_tokens: int, cuts: bool) -> NextPass:
        """The next pass, as determined by the first stage.

        Args:
            num_tokens: the rank's own tokens, if it is in the first stage.
            cuts: whether the rank agrees to split the pass.
        """
        found = self._ask(num_tokens, cuts) if self.is_first else self._receive()
        if not self._is_last and (found.is_over or any(found.counts)):
            self._hand_on(found)
        return found

    def settle(self) -> None:
        """Waits until the next stage has received everything that was sent to it."""
        while self._sent:
            self._sent.popleft()[0].wait()

    def _ask(self, num_tokens: int, cuts: bool) -> NextPass:
        """Exchanges counts among the ranks of the stage; the result is the same on all of them."""
        mine = torch.tensor([num_tokens, int(cuts)])
        gathered = [torch.empty_like(mine) for _ in range(self._layout.data * self._layout.tensor)]
        dist.all_gather(gathered, mine, group=self._stage)
        found = torch.stack(gathered)
        of_data_ranks = found.view(self._layout.data, self._layout.tensor, 2).amin(1)
        is_cut = all(cut for count, cut in of_data_ranks.tolist() if count)
        return NextPass(of_data_ranks[:, 0].tolist(), is_cut, is_over=not bool(found[:, 0].any()))

    def _receive(self) -> NextPass:
        """Receives the next pass from the previous stage.

        At the end of a wave, an exchange makes all ranks of the stage wait until each has run the wave's passes.
        """
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
