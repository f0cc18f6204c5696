"""Maps chosen experts to the ranks and slots that hold them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from engine_svc.parallel.layout import ParallelLayout
from engine_svc.parallel.placement import Placement


class Routes(NamedTuple):
    """The places of chosen experts: both int64 [tokens, chosen]."""

    data: torch.Tensor  # the data rank; -1 if another rank of this rank's tensor group handles the expert
    slots: torch.Tensor  # on that data rank


class ExpertRoutes:
    """Lookup tables of one rank.

    The ranks of a tensor group have the same tokens: each handles the experts held by ranks at its own position in
    their tensor groups.
    """

    def __init__(self, placement: Placement, layout: ParallelLayout, tensor_rank: int, device: torch.device) -> None:
        self._layout, self._tensor_rank, self._device = layout, tensor_rank, device
        self.placement = placement
        self._data, self._slots, self._copies = self._tables(placement)

    def follow(self, placement: Placement) -> None:
        """Switches to a new placement of the experts."""
        self.placement = placement
        self._data, self._slots, self._copies = self._tables(placement)

    def _tables(self, placement: Placement) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Data ranks and slots, each [experts + 1, most copies of an expert], and the number of copies of each expert.

        The last row is for expert -1, which no rank has. The number of copies is None if no expert has more than one.
        """
        places = placement.ranks_of()
        most = max(len(each) for each in places.values())
        data = torch.full((len(places) + 1, most), -1, dtype=torch.int64)
        slots, copies = torch.zeros_like(data), torch.ones(len(data), dtype=torch.int64)
        for expert, found in places.items():
            copies[expert] = len(found)
            for copy, (rank, slot) in enumerate(found):
                data_rank, tensor_rank = divmod(rank, self._layout.tensor)
                data[expert, copy] = data_rank if tensor_rank == self._tensor_rank else -1
                slots[expert, copy] = slot
        return data.to(self._device), slots.to(self._device), copies.to(self._device) if most > 1 else None

    def find(self, expert_ids: torch.Tensor) -> Routes:
        """Finds the rank and slot of each chosen expert; -1 is no expert.

        Rows are distributed over the copies of an expert by their index, regardless of their content.
        """
        if self._copies is None:
            return Routes(self._data[:, 0][expert_ids], self._slots[:, 0][expert_ids])
        rows = torch.arange(len(expert_ids), device=expert_ids.device)[:, None]
        copy = rows % self._copies[expert_ids]
        return Routes(self._data[expert_ids, copy], self._slots[expert_ids, copy])

    def slots_of(self, data_rank: int, expert_ids: torch.Tensor) -> torch.Tensor:
        """The slots on one data rank, int64 [tokens, chosen]; -1 for experts that go to another rank."""
        routes = self.find(expert_ids)
        return torch.where(routes.data == data_rank, routes.slots, -1)
