"""The ranks of a model that is served for pooling, each a process."""

from __future__ import annotations

from collections.abc import Sequence

from engine_svc.executor.base import ExecutorDead
from engine_svc.executor.messages import Pool, Pooled
from engine_svc.executor.multiproc import MultiprocExecutor
from engine_svc.pooling_plan import PoolingPlan, PoolingResult


class PooledRanks(MultiprocExecutor):
    """Runs pooling steps on all ranks, which share each layer. Any failure of a rank ends all of them."""

    def __init__(self, tokens: Sequence[int]) -> None:
        """
        Args:
            tokens: ids of the tokens whose logits are classes.
        """
        super().__init__()
        self.pooled_tokens = [*tokens]

    def run(self, plan: PoolingPlan) -> PoolingResult:
        """See PoolingRunner.run.

        Raises:
            ExecutorDead: a rank failed, is gone or does not answer.
        """
        self._send_all(Pool(plan.step, plan.sequences))
        for answer in self._receive(self._step_seconds):
            if isinstance(answer, Pooled):
                return PoolingResult(
                    [*answer.outputs], answer.forward_milliseconds, answer.execute_milliseconds, answer.encoded_media
                )
        raise ExecutorDead("no rank has answered a pooling step with its results")

    def reset_encoder_cache(self) -> None:
        """Does nothing: a step keeps nothing of the images that it encodes."""
