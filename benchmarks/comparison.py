"""Figures of servers side by side, and the goals for Quire's figures relative to its peers'."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

SHARED = "shared"  # the load of prompts with shared prefixes
TOKENS, FIRST, BETWEEN = "output tok/s", "TTFT ms", "TPOT ms"
START, MEMORY = "start s", "memory MiB"
FIGURES = (TOKENS, FIRST, BETWEEN)
VLLM, LLAMA, OWN = "vLLM", "llama.cpp", "Quire bfloat16"
# Peer → load ("" for any other) → figure → goal: tokens at least this many times the peer's, times at most.
Goals: TypeAlias = Mapping[str, Mapping[str, Mapping[str, float]]]
_GOALS: Goals = {
    VLLM: {"": {TOKENS: 1.5, FIRST: 0.6}},
    LLAMA: {"1": {TOKENS: 1.0, FIRST: 0.5}, "": {TOKENS: 1.3, FIRST: 0.5}},
}
# Part of the name of a form of ours → the form of llama.cpp that it is compared with.
_LLAMA_FORMS = {"Q4_K_M": "Q4_K_M", "int4": "Q4_K_M", "Q8_0": "Q8_0", "int8": "Q8_0", "": "BF16"}


@dataclass(frozen=True)
class Measure:
    """One figure of one server in one round."""

    shape: str
    load: str
    figure: str
    server: str
    value: float


def report(measures: Sequence[Measure], goals: Goals = _GOALS) -> str:
    """Two tables of medians as Markdown: each server under each load, and each server's startup time and memory.

    Figures are followed by their ratios to the peers' in the same rounds; a ratio that misses its goal names the goal.
    """
    medians = _medians(measures)
    cases = list(dict.fromkeys((found.shape, found.load, found.server) for found in measures if found.load))
    peers = [peer for peer in goals if any(server.startswith(peer) for _, _, server in cases)]
    heads = ["shape", "load", "server", *FIGURES, *(f"{name} / {peer}'s" for peer in peers for name in (TOKENS, FIRST))]
    lines = [_row(heads), "|---" * len(heads) + "|"]
    for shape, load, server in sorted(cases, key=lambda case: (case[0], case[1].zfill(9))):
        own = [f"{medians[shape, load, name, server]:.1f}" for name in FIGURES]
        lines.append(
            _row(
                [
                    shape,
                    load,
                    server,
                    *own,
                    *_ratios(medians, {peer: goals[peer] for peer in peers}, shape, load, server),
                ]
            )
        )
    lines += ["", _row(["shape", "server", START, MEMORY]), "|---|---|---|---|"]
    for shape, server in dict.fromkeys((shape, server) for shape, _, server in cases):
        weights = (f"{medians[shape, '', name, server]:.1f}" for name in (START, MEMORY))
        lines.append(_row([shape, server, *weights]))
    return "\n".join(lines)


def _medians(measures: Sequence[Measure]) -> dict[tuple[str, str, str, str], float]:
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for found in measures:
        values.setdefault((found.shape, found.load, found.figure, found.server), []).append(found.value)
    return {key: statistics.median(found) for key, found in values.items()}


def _ratios(
    medians: Mapping[tuple[str, str, str, str], float], goals: Goals, shape: str, load: str, server: str
) -> Iterator[str]:
    for peer, wanted in goals.items():
        other = _counterpart(peer, server, {known for *_, known in medians})
        for name in (TOKENS, FIRST):
            theirs = medians.get((shape, load, name, other))
            is_peer = server.startswith((VLLM, LLAMA)) or server == other
            yield (
                ""
                if is_peer or theirs is None
                else _judged(
                    medians[shape, load, name, server] / theirs, wanted.get(load, wanted[""]).get(name), name == TOKENS
                )
            )


def _counterpart(peer: str, server: str, known: Set[str]) -> str:
    """The form of a peer that a server is compared with: the same weight bits, the same instruction level."""
    if peer == LLAMA:
        return f"{LLAMA} {next(theirs for ours, theirs in _LLAMA_FORMS.items() if ours in server)}"
    level = f"{VLLM} {server.partition(' ')[2].partition(' ')[0]}"
    return level if peer == VLLM and level in known else peer


def _judged(ratio: float, goal: float | None, is_more_better: bool) -> str:
    is_met = goal is None or (ratio >= goal if is_more_better else ratio <= goal)
    return f"{ratio:.2f}" if is_met else f"{ratio:.2f} (goal {'≥' if is_more_better else '≤'} {goal})"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
