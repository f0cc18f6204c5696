"""`--load-format dummy`: random weights, for benchmarks of shapes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from engine_svc.loader.formats.base import LoadFormat
from quire.supervised import Stage, report

if TYPE_CHECKING:
    from engine_svc.models.decoder import Decoder
    from engine_svc.parallel.group import ParallelGroups


class Dummy(LoadFormat):
    """Reads only the configuration; the weights are random."""

    is_random: ClassVar[bool] = True

    def files(self) -> Sequence[Path]:
        """There are no files."""
        return ()

    def load(self, model: Decoder, groups: ParallelGroups, seed: int) -> None:
        """See LoadFormat.load."""
        from engine_svc.loader.weights import pack_weights, randomize_weights

        report(Stage.LOADING)
        randomize_weights(model, seed)
        pack_weights(model)
