"""The ranks of a model that is served for pooling, each a process."""

from __future__ import annotations

from collections.abc import Sequence

from engine_svc.executor.agreement import Reports
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
        self._reads = Reports()

    def run(self, plan: PoolingPlan) -> PoolingResult:
        """See PoolingRunner.run.

        Raises:
            ExecutorDead: a rank failed, is gone or does not answer.
        """
        self._reads.forget(plan.adapters.dropped)
        self._send_all(Pool(plan.step, [*plan.sequences], plan.adapters))
        answers = self._receive(self._step_seconds)
        pooled = [answer for answer in answers if isinstance(answer, Pooled)]
        if len(pooled) < len(answers):
            raise ExecutorDead(f"{len(answers) - len(pooled)} ranks gave another kind of answer to a pooling step")
        first = pooled[0]
        return PoolingResult(
            first.outputs, first.forward_milliseconds, first.execute_milliseconds, first.encoded_media,
            self._reads.agree([answer.read_adapters for answer in pooled]),
        )  # fmt: skip

    def reset_encoder_cache(self) -> None:
        """Does nothing: a step keeps nothing of the images that it encodes."""
