"""Fewer and larger pieces of a streamed answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from gateway.answers.deltas import ChoiceUpdate, Content, Delta, Reasoning
from gateway.answers.stream import EventWriter
from quire.errors import QuireError


class Coalescer:
    """Makes one update of at least as many tokens of a choice as are wanted; its first one and its end do not wait."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._begun: set[int] = set()  # choices
        self._held: dict[int, list[ChoiceUpdate]] = {}  # by choice
        self._counts: dict[int, int] = {}  # tokens held, by choice

    def add(self, update: ChoiceUpdate) -> ChoiceUpdate | None:
        """The update with what was held of its choice; None where that is held longer."""
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
        """What is held, where nothing more comes."""
        return map(_joined, self._held.values())


class Coalesced:
    """An EventWriter that tells as many tokens of a choice at a time to the one that it stands before."""

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
    """Several updates of a choice as one."""
    return ChoiceUpdate(
        updates[0].index,
        tuple(_joined_deltas(delta for update in updates for delta in update.deltas)),
        tuple(itertools.chain.from_iterable(update.token_ids for update in updates)),
        tuple(itertools.chain.from_iterable(update.scores for update in updates)),
        next((update.prompt_scores for update in updates if update.prompt_scores), ()),
    )


def _joined_deltas(deltas: Iterator[Delta]) -> Iterator[Delta]:
    """Texts of one kind that follow each other become one."""
    for kind, some in itertools.groupby(deltas, type):
        if kind in (Content, Reasoning):
            yield kind("".join(cast("Content | Reasoning", delta).text for delta in some))
        else:
            yield from some
