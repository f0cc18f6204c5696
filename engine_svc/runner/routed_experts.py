"""Which experts each token went through, kept beside its keys and values in the KV cache.

So it is there wherever those are: for a prompt that is found in the prefix cache, for choices that share a prompt, in
host memory and in files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.attention.base import AttentionBackend
from engine_svc.layer_groups import LayerGroup
from engine_svc.loader.model import LoadedModel
from engine_svc.models.decoder import Decoder
from engine_svc.models.expert_choice import ExpertChoice
from engine_svc.plan import RoutedExpertsForm, StepPlan
from engine_svc.runner.batch import FlatBatch, SlotBuffers
from engine_svc.transfer import to_device, to_host
from quire.errors import StartupError
from quire.options.engine import EngineOptions

_FLAG = "--enable-return-routed-experts"


@dataclass(frozen=True)
class RoutedRows:
    """What some sequences' tokens were routed to, on its way to the host."""

    spans: list[tuple[int, int, int]]  # for each sequence: its slot, position of its first row, number of rows
    rows: torch.Tensor  # [rows, layers, experts per token]

    def read(self) -> dict[int, tuple[int, bytes]]:
        """See StepResult.routed_experts; the device must be done."""
        found, start = {}, 0
        for slot, first, count in self.spans:
            found[slot] = first, self.rows[start : start + count].numpy().tobytes()
            start += count
        return found


class RoutedExperts:
    """Records the choices of all layers with experts; a layer without experts has zeros."""

    def __init__(
        self, choices: Mapping[int, ExpertChoice], num_layers: int, most_rows: int, attention: AttentionBackend,
        device: torch.device,
    ) -> None:  # fmt: skip
        """
        Args:
            choices: the routers, by layer; all choose the same number of experts.
            most_rows: of a pass, including padding.
        """
        chosen = next(iter(choices.values())).experts_per_token
        is_narrow = max(choice.num_experts for choice in choices.values()) <= 256
        self.form = RoutedExpertsForm(num_layers, chosen, 1 if is_narrow else 2)
        self._dtype = torch.uint8 if is_narrow else torch.int16
        self._attention, self._device = attention, device
        self._record = torch.zeros((num_layers, most_rows, chosen), dtype=torch.int64, device=device)  # of one pass
        for layer, choice in choices.items():
            choice.record = self._record[layer]
        self.cache: torch.Tensor | None = None  # has the blocks in the same dimension as the KV caches

    @property
    def bytes_per_block(self) -> int:
        """What is kept of a block's tokens."""
        return self._attention.shape.block_tokens * self.form.bytes_per_token

    def allocate(self, num_blocks: int) -> None:
        """Allocates as many blocks as the KV caches have."""
        layers, chosen = self.form.num_layers, self.form.experts_per_token
        shape = [1] * self._attention.block_dimension + [num_blocks, self._attention.shape.block_tokens, layers, chosen]
        self.cache = torch.zeros(shape, dtype=self._dtype, device=self._device)

    def keep(self, batch: FlatBatch) -> None:
        """Keeps the choices of a pass over a batch that has just run."""
        rows = self._record[:, : batch.num_tokens].transpose(0, 1)
        self._rows[to_device(batch.host.slot_mappings[0], self._device)] = rows.to(self._dtype)

    def read(self, plan: StepPlan, batch: FlatBatch, buffers: SlotBuffers) -> RoutedRows:
        """The rows of the tokens that a step computes; of a sequence that starts, also of those that were cached."""
        begun = {sequence.slot for sequence in plan.new_sequences if sequence.num_computed_tokens}
        spans, places = [], list[npt.NDArray[np.int64]]()
        for index, slot in enumerate(batch.slots):
            first = batch.computed[index]
            if slot in begun:
                places.append(buffers.places(slot, first))
                first = 0
            places.append(batch.host.slot_mappings[0][batch.query_start[index] : batch.query_start[index + 1]])
            spans.append((slot, first, batch.lengths[index] - first))
        return RoutedRows(spans, to_host(self._rows[to_device(np.concatenate(places), self._device)]))

    @property
    def _rows(self) -> torch.Tensor:
        """[places in the KV cache, layers, experts per token]"""
        assert self.cache is not None
        return self.cache.view(-1, *self.cache.shape[-2:])


def record_routed(
    loaded: LoadedModel, groups: Sequence[LayerGroup], options: EngineOptions, token_budget: int, device: torch.device
) -> RoutedExperts | None:
    """Has a model's routers record their choices; None if the options do not ask for it.

    Raises:
        StartupError: the model or the layout does not allow it.
    """
    if not options.generation.enable_return_routed_experts:
        return None
    parallel, name = options.parallel, loaded.facts.architecture
    refused = {
        "--pipeline-parallel-size": parallel.pipeline_parallel_size > 1,
        "--decode-context-parallel-size": parallel.decode_context_parallel_size > 1,
        "--enable-dbo": parallel.dual_batch.enable_dbo,
    }
    if wrong := [flag for flag, given in refused.items() if given]:
        raise StartupError(f"{_FLAG} cannot be combined with {wrong[0]}. Leave one of them out.")
    layers = loaded.model.layers.items() if isinstance(loaded.model, Decoder) else ()
    found = {int(index): each for index, layer in layers for each in layer.modules() if isinstance(each, ExpertChoice)}
    if len({choice.experts_per_token for choice in found.values()}) != 1:
        raise StartupError(f"{_FLAG} needs a model of Quire's own families with experts, which {name} is not.")
    if groups[0].window is not None or not groups[0].layers:
        raise StartupError(f"{_FLAG} needs a layer that attends to all tokens, which {name} does not have.")
    decoding = options.scheduler.most_sequences * options.speculative.most_query_len
    return RoutedExperts(found, loaded.facts.num_layers, max(token_budget, decoding), loaded.attention, device)
