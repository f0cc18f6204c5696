"""Sends tokens to experts on other data-parallel ranks, and returns the results.

The ranks of a tensor group have the same tokens. Each rank exchanges tokens only with the ranks at its own position in
the other tensor groups. The all-reduce over its own group, which follows, sums what all of its ranks have received.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch

from engine_svc.layers.expert_routes import ExpertRoutes
from engine_svc.parallel.group import ParallelGroups


class Compute(Protocol):
    """Computes what this rank's experts, or its parts of all experts, add to tokens."""

    def __call__(self, hidden: torch.Tensor, weights: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]; arguments as for ExpertsProduct, with slots for experts."""
        ...


class ExpertExchange(ABC):
    """The expert exchange of one layer; one subclass for each method."""

    def __init__(self, groups: ParallelGroups, routes: ExpertRoutes | None) -> None:
        """
        Args:
            routes: where experts are. None means each rank has a part of every expert.
        """
        self._groups, self._routes = groups, routes
        self._own = groups.layout.coordinates(groups.rank).data

    @abstractmethod
    def __call__(
        self, hidden: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor, compute: Compute
    ) -> torch.Tensor:
        """What the experts add to each of this rank's tokens: [tokens, hidden_size].

        Leaves out what the other ranks of the tensor group contribute.
        """

    def _slots(self, expert_ids: torch.Tensor) -> torch.Tensor:
        """This rank's slots of the experts."""
        return expert_ids if self._routes is None else self._routes.slots_of(self._own, expert_ids)


class NoExchange(ExpertExchange):
    """For a single data rank: nothing is exchanged."""

    def __call__(
        self, hidden: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor, compute: Compute
    ) -> torch.Tensor:
        """See ExpertExchange."""
        return compute(hidden, weights, self._slots(expert_ids))


class GatherAndScatter(ExpertExchange):
    """Every data rank gathers all tokens, and computes what its experts add; each then sums its own tokens' results.

    Where every rank has a part of each expert, this is the only method.
    """

    def __call__(
        self, hidden: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor, compute: Compute
    ) -> torch.Tensor:
        """See ExpertExchange."""
        data, counts = self._groups.data, _counts(self._groups)
        rows = data.all_gather_rows(_pack(hidden, weights, expert_ids), counts)
        everyones, weights, expert_ids = _unpack(rows, hidden, weights.shape[1])
        results = compute(everyones, weights, self._slots(expert_ids))
        own = [len(hidden)] * data.world_size
        found = data.exchange_rows(results, counts, own).view(data.world_size, *hidden.shape)
        total = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        for each in found:  # always in rank order, for reproducible sums
            total += each
        return total.to(hidden.dtype)


class AllToAll(ExpertExchange):
    """Sends each token once to every data rank that has any of its experts, and receives what these add."""

    def __call__(
        self, hidden: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor, compute: Compute
    ) -> torch.Tensor:
        """See ExpertExchange."""
        assert self._routes is not None
        data, routes = self._groups.data, self._routes.find(expert_ids)
        ranks = torch.arange(data.world_size, device=hidden.device)
        wanted = (routes.data[None] == ranks[:, None, None]).any(-1)  # [ranks, tokens]
        target, token = wanted.nonzero(as_tuple=True)  # by rank, then by token
        slots = torch.where(routes.data[token] == target[:, None], routes.slots[token], -1)
        rows, sent, received = data.send_rows(_pack(hidden[token], weights[token], slots), wanted.sum(1))
        results = compute(*_unpack(rows, hidden, weights.shape[1]))
        returned = data.exchange_rows(results, received, sent)
        total = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
        for tokens, part in zip(token.split(sent), returned.split(sent), strict=True):  # in the order of ranks
            total.index_add_(0, tokens, part.float())
        return total.to(hidden.dtype)


def exchange_for(name: str, groups: ParallelGroups, routes: ExpertRoutes | None) -> ExpertExchange:
    """The exchange with the configured name, where there is a choice."""
    if groups.layout.data == 1:
        return NoExchange(groups, routes)
    return GatherAndScatter(groups, routes) if routes is None or name != "alltoall" else AllToAll(groups, routes)


def _counts(groups: ParallelGroups) -> list[int]:
    assert groups.lockstep is not None
    return [groups.dual_batch.share(count) for count in groups.lockstep.counts]


def _pack(hidden: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """All that is sent for a token, as bytes: uint8 [tokens, bytes]."""
    parts = (hidden, weights, ids.to(torch.int32))
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1)


def _unpack(rows: torch.Tensor, like: torch.Tensor, chosen: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unpacks hidden states of the dtype and size of `like`, weights and ids."""
    size = like.shape[1] * like.element_size()
    hidden, weights, ids = (part.contiguous() for part in rows.split([size, 4 * chosen, 4 * chosen], dim=1))
    return hidden.view(like.dtype), weights.view(torch.float32), ids.view(torch.int32).long()
