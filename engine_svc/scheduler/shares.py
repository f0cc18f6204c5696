"""What each step takes of the work, where a model's layers stand in stages and each has a step under way.

While a step is in the second stage the next one is in the first, with other sequences: for which token comes next is
known only once a step has left the last stage. So the sequences that decode are dealt to as many steps as there are
stages, in turn, and the tokens of prompts are shared out likewise: where one step were to have everything, all stages
but one would wait. A long prompt may be in all of the steps at once, a part in each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from engine_svc.requests.sequence import Sequence
from engine_svc.scheduler.batch import Batch


class StepShares:
    """With one stage, each step may take all that its budget has room for.

    Attributes:
        budget: tokens of the step that is planned.
        most_decoding: sequences in it that compute one token each.
    """

    def __init__(self, num_stages: int, token_budget: int, max_num_seqs: int, splits_prompts: bool) -> None:
        """
        Args:
            token_budget: that no step goes beyond.
        """
        self._num_stages = num_stages
        self._token_budget = self.budget = token_budget
        self.most_decoding = max_num_seqs
        self._splits_prompts = splits_prompts
        self._under_way: deque[int] = deque(maxlen=num_stages - 1)  # tokens of the steps planned last

    def begin(self, running: Iterable[Sequence], num_waiting_tokens: int) -> None:
        """A step is about to be planned."""
        if self._num_stages == 1:
            return
        uncomputed = [sequence.num_uncomputed_tokens for sequence in running]
        self.most_decoding = self._share(sum(count <= 1 for count in uncomputed))
        if self._splits_prompts:
            share = self._share(sum(uncomputed) + num_waiting_tokens + sum(self._under_way))
            # Fewer tokens than that would take a stage nearly as long.
            self.budget = min(self._token_budget, max(self._token_budget // self._num_stages, share))

    def _share(self, count: int) -> int:
        return -(-count // self._num_stages)

    def end(self, batch: Batch) -> None:
        """The step is planned."""
        self._under_way.append(batch.num_tokens)

    def is_under_way(self, sequence: Sequence, step: int) -> bool:
        """Whether tokens that a sequence waits for come from a step that is still in a stage when this one begins."""
        return step - sequence.last_step < self._num_stages
