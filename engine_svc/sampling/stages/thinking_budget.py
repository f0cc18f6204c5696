"""Ends reasoning that exceeds its token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine_svc.sampling.stages.base import LogitsStage, SlotSequence, StageRows
from engine_svc.sampling.stages.edits import LogitEdits
from engine_svc.sampling.stages.places import checked_ids
from engine_svc.sampling.thinking import ThinkingAutomaton, make_automaton
from engine_svc.transfer import to_device
from quire.reasoning import ReasoningMarks

# A logit so far above all others (see penalties.py) that no other token can be sampled; finite even at the lowest
# temperature.
CERTAIN = 1e32


@dataclass(frozen=True, eq=False)
class _Tables:
    """An automaton on the device."""

    marks: ReasoningMarks
    automaton: ThinkingAutomaton
    token_ids: torch.Tensor  # int64 [classes - 1]
    following: torch.Tensor  # int64 [states, classes], as are the next two
    tokens: torch.Tensor
    kept: torch.Tensor  # 0 where the count restarts, else 1
    undecided: torch.Tensor  # int64 [states], as is the next
    marking: torch.Tensor


@dataclass(frozen=True)
class _Group:
    """Rows of sequences with the same reasoning marks."""

    tables: _Tables
    slots: torch.Tensor
    rows: torch.Tensor


@dataclass(frozen=True)
class _Recorder:
    """Advances the slots' states and counts by the sampled tokens; see Recorder."""

    states: torch.Tensor
    counts: torch.Tensor
    groups: list[_Group]

    def record(self, token_ids: torch.Tensor) -> None:
        """See Recorder.record."""
        for group in self.groups:
            tables = group.tables
            same = token_ids[group.rows, None] == tables.token_ids
            classes = torch.where(same.any(dim=-1), same.int().argmax(dim=-1), len(tables.token_ids))
            at = self.states[group.slots], classes
            self.counts[group.slots] = self.counts[group.slots] * tables.kept[at] + tables.tokens[at]
            self.states[group.slots] = tables.following[at]


class ThinkingBudget(LogitsStage):
    """Forces the end mark, token by token, after `thinking_token_budget` tokens of reasoning.

    Only the device may know whether a budget is used up, so each slot's automaton is run there.
    """

    looks_back = True
    is_sequential = True

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._budgets = np.zeros(max_num_seqs, np.int64)
        self._tables: dict[int, _Tables] = {}  # by slot; kept after a sequence ends, because others may share them
        self._states = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._counts = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)

    def add(self, slot: int, sequence: SlotSequence) -> bool:
        """See LogitsStage.add."""
        wanted = sequence.plan.parameters
        if wanted.thinking_token_budget is None or wanted.reasoning is None:
            return False
        self._budgets[slot] = wanted.thinking_token_budget
        known = (tables for tables in self._tables.values() if tables.marks == wanted.reasoning)
        tables = self._tables[slot] = next(known, None) or self._make_tables(wanted.reasoning)
        output = sequence.token_ids[sequence.num_prompt_tokens :]
        self._states[slot], self._counts[slot] = tables.automaton.follow(output)
        return True

    def apply(self, edits: LogitEdits, rows: StageRows) -> _Recorder:
        """See LogitsStage.apply."""
        by_tables: dict[_Tables, list[int]] = {}
        for index, slot in enumerate(rows.slots):
            by_tables.setdefault(self._tables[slot], []).append(index)
        groups = []
        for tables, indices in by_tables.items():
            slots = [rows.slots[index] for index in indices]
            group = _Group(
                tables,
                to_device(slots, self._device),
                to_device([rows.rows[index] for index in indices], self._device),
            )
            states = self._states[group.slots]
            used = self._counts[group.slots] + tables.undecided[states] >= to_device(self._budgets[slots], self._device)
            marking = tables.marking[states]
            at = group.rows, marking.clamp(min=0)
            edits.write(*at, torch.where(used & (marking >= 0), CERTAIN, edits.read(*at)))
            groups.append(group)
        return _Recorder(self._states, self._counts, groups)

    def _make_tables(self, marks: ReasoningMarks) -> _Tables:
        automaton = make_automaton(marks)
        checked_ids(automaton.token_ids, self._vocab_size)

        def table(values: Sequence[int] | Sequence[Sequence[int]]) -> torch.Tensor:
            return to_device(np.array(values, np.int64), self._device)

        return _Tables(
            marks, automaton, table(automaton.token_ids), table(automaton.following), table(automaton.tokens),
            1 - table(automaton.begins), table(automaton.undecided), table(automaton.marking),
        )  # fmt: skip
