"""Merges the updates of a streamed answer into fewer, larger ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from gateway.answers.deltas import ChoiceUpdate, Content, Delta, Reasoning
from gateway.answers.stream import EventWriter
from quire.errors import QuireError


class Coalescer:
    """Merges a choice's updates until they have `tokens` tokens; its first and last updates are not delayed."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._begun: set[int] = set()  # choices whose first tokens were passed on
        self._held: dict[int, list[ChoiceUpdate]] = {}  # by choice
        self._counts: dict[int, int] = {}  # tokens held, by choice

    def add(self, update: ChoiceUpdate) -> ChoiceUpdate | None:
        """Returns the update merged with those held back for its choice; None if it is held back too."""
        index = update.index
        held = self._held.setdefault(index, [])
        held.append(update)
        count = self._counts[index] = self._counts.get(index, 0) + len(update.token_ids)
        if index in self._begun and count < self._tokens and not update.finish:
            return None
        if count:
            self._begun.add(index)
        del self._held[index], self._counts[index]
        return _joined(held)

    def rest(self) -> Iterator[ChoiceUpdate]:
        """Returns the updates still held back, when nothing more comes."""
        return map(_joined, self._held.values())


class Coalesced:
    """An EventWriter that merges updates of a choice before passing them to another EventWriter."""

    def __init__(self, writer: EventWriter[ChoiceUpdate], tokens: int) -> None:
        self._writer, self._coalescer = writer, Coalescer(tokens)

    def opening(self) -> Iterable[bytes]:
        """See EventWriter."""
        return self._writer.opening()

    def update(self, update: ChoiceUpdate) -> Iterable[bytes]:
        """See EventWriter."""
        whole = self._coalescer.add(update)
        return () if whole is None else self._writer.update(whole)

    def closing(self, error: QuireError | None) -> Iterable[bytes]:
        """See EventWriter."""
        for update in self._coalescer.rest():
            yield from self._writer.update(update)
        yield from self._writer.closing(error)


def _joined(updates: Sequence[ChoiceUpdate]) -> ChoiceUpdate:
    """Merges several updates of a choice."""
    return ChoiceUpdate(
        updates[0].index,
        tuple(_joined_deltas(delta for update in updates for delta in update.deltas)),
        tuple(itertools.chain.from_iterable(update.token_ids for update in updates)),
        tuple(itertools.chain.from_iterable(update.scores for update in updates)),
        next((update.prompt_scores for update in updates if update.prompt_scores), ()),
        tuple(itertools.chain.from_iterable(update.routed_experts for update in updates)),
        tuple(itertools.chain.from_iterable(update.sampling_masks for update in updates)),
        updates[-1].weight_versions,
    )


def _joined_deltas(deltas: Iterator[Delta]) -> Iterator[Delta]:
    """Joins consecutive texts of the same kind."""
    for kind, some in itertools.groupby(deltas, type):
        if kind in (Content, Reasoning):
            yield kind("".join(cast("Content | Reasoning", delta).text for delta in some))
        else:
            yield from some
