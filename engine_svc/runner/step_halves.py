"""Decides which steps of a rank run as two halves: see parallel/dual_batch.py."""

from __future__ import annotations

import logging

from engine_svc.parallel.group import ParallelGroups
from engine_svc.plan import StepPlan
from quire.options.dual_batch import DualBatchOptions

logger = logging.getLogger(__name__)


class StepHalves:
    """Decides for a rank's own steps. Where data ranks share experts, a pass is split only if all of them agree."""

    def __init__(self, options: DualBatchOptions, groups: ParallelGroups) -> None:
        self._options = options
        self._is_on = options.enable_dbo and (groups.layout.tensor > 1 or groups.lockstep is not None)
        if options.enable_dbo and groups.rank == 0:
            self._tell()

    def _tell(self) -> None:
        if not self._is_on:
            logger.warning(
                "--enable-dbo has no effect: without --tensor-parallel-size or experts shared by data ranks, ranks "
                "do not communicate within a pass"
            )
            return
        logger.info(
            "dual batch overlap: steps that decode more than %d tokens, and those with prompts of more than %d, run as "
            "two halves",
            self._options.dbo_decode_token_threshold, self._options.dbo_prefill_token_threshold,
        )  # fmt: skip

    def wants(self, plan: StepPlan, *, is_divisible: bool) -> bool:
        """Whether to split a step into two halves.

        Args:
            is_divisible: see FlatBatch.is_divisible. Steps with adapter rows are not, because the adapter layers hold
                the row mapping of a single batch.
        """
        decodes_only = all(each.num_new_tokens == each.num_sampled_positions for each in plan.scheduled)
        return self._is_on and is_divisible and self._options.cuts(plan.num_tokens, decodes_only=decodes_only)
