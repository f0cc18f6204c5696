"""Each step's share of the work under pipeline parallelism, where every stage has a step under way.

While one step is in the second stage the next is in the first, with other sequences, because a sequence's next token
is known only once its step has left the last stage. So the decoding sequences are distributed over as many steps as
there are stages, in turn, and so are the prompt tokens: if one step had everything, all stages but one would idle. A
long prompt may be in all of the steps at once, with a part in each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from engine_svc.requests.sequence import Sequence
from engine_svc.scheduler.batch import Batch


class StepShares:
    """Limits what a step takes. With one stage, each step may use the whole token budget.

    Attributes:
        budget: most tokens of the step being planned.
        most_decoding: most sequences in it that compute a single token.
    """

    def __init__(self, num_stages: int, token_budget: int, max_num_seqs: int, splits_prompts: bool) -> None:
        """
        Args:
            token_budget: most tokens of any step.
        """
        self._num_stages = num_stages
        self._token_budget = self.budget = token_budget
        self.most_decoding = max_num_seqs
        self._splits_prompts = splits_prompts
        self._under_way: deque[int] = deque(maxlen=num_stages - 1)  # tokens of the steps planned last

    def begin(self, running: Iterable[Sequence], num_waiting_tokens: int) -> None:
        """Sets the limits of a step that is about to be planned."""
        if self._num_stages == 1:
            return
        uncomputed = [sequence.num_uncomputed_tokens for sequence in running]
        self.most_decoding = self._share(sum(count <= 1 for count in uncomputed))
        if self._splits_prompts:
            share = self._share(sum(uncomputed) + num_waiting_tokens + sum(self._under_way))
            # A stage would take nearly as long for fewer tokens than that.
            self.budget = min(self._token_budget, max(self._token_budget // self._num_stages, share))

    def _share(self, count: int) -> int:
        return -(-count // self._num_stages)

    def end(self, batch: Batch) -> None:
        """Records the step that was planned."""
        self._under_way.append(batch.num_tokens)

    def is_under_way(self, sequence: Sequence, step: int) -> bool:
        """Whether the sequence's last step will still be in a stage when this one begins."""
        return step - sequence.last_step < self._num_stages
