"""Explains a request's placement: the candidates, one per line, and a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from quire.client.text_table import percent, printable, text_table
from quire.v1 import router_pb2

_HEADER = ("", "ADDRESS", "CACHED", "HOST", "OF", "QUEUE", "SEQS", "KV", "COST MS")
_LEFT = 2  # columns of text, aligned left
_COMPARES_COSTS = "prefix"


def placement_table(answer: router_pb2.ExplainPlacementResponse, weights: Sequence[str]) -> str:
    """Formats the decision.

    Args:
        weights: the alternative weights asked for, such as `--host-tier 0.5`; adds a column of costs with these.
    """
    header = [*_HEADER, "BY YOURS"] if weights else _HEADER
    candidates = sorted(answer.candidates, key=lambda candidate: candidate.cost_seconds)
    rows = [_row(answer, candidate)[: len(header)] for candidate in candidates]
    lines = [*text_table(header, rows, _LEFT), _head(answer), _reason(answer, candidates)]
    if weights or answer.policy != _COMPARES_COSTS:
        lines.append(_would_choose(answer, weights))
    return "\n".join(lines)


def _row(answer: router_pb2.ExplainPlacementResponse, candidate: router_pb2.PlacementCandidate) -> list[str]:
    return [
        "*" if candidate.address == answer.chosen else "",
        candidate.address,
        f"{candidate.cached_tokens:,}",
        f"{candidate.host_cached_tokens:,}",
        f"{answer.prompt_tokens:,}",
        f"{candidate.waiting_prefill_tokens:,}",
        f"{candidate.sequences:,}",
        percent(candidate.kv_usage, 1),
        _milliseconds(candidate.cost_seconds),
        _milliseconds(candidate.cost_with_weights_seconds),
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}"


def _head(answer: router_pb2.ExplainPlacementResponse) -> str:
    waited = f" after {answer.queued_seconds:.3f} s in the queue" if answer.queued_seconds >= 1e-3 else ""
    attempt = f", attempt {answer.attempt}" if answer.attempt > 1 else ""
    how = f"placed by {answer.policy} in {answer.decision_microseconds:.0f} µs{waited}"
    return f"{printable(answer.request_id)}{attempt}: {how}."


def _reason(answer: router_pb2.ExplainPlacementResponse, candidates: Sequence[router_pb2.PlacementCandidate]) -> str:
    """Which worker was chosen and why.

    Args:
        candidates: the candidates, cheapest first.
    """
    if len(candidates) == 1:
        return f"{answer.chosen} was the only worker that could take it."
    chosen = next(candidate for candidate in candidates if candidate.address == answer.chosen)
    if answer.policy != _COMPARES_COSTS:
        return f"{chosen.address} was chosen by {answer.policy}, which does not compare these costs."
    cached = chosen.cached_tokens + chosen.host_cached_tokens
    what = f"with {cached:,} of {answer.prompt_tokens:,} prompt tokens cached and {chosen.sequences} sequences there"
    cost, least, next_cost = (each.cost_seconds for each in (chosen, candidates[0], candidates[1]))
    if cost > least:
        return (
            f"{chosen.address} was chosen at random among the workers about as cheap as the cheapest, "
            f"{_milliseconds(cost)} ms against {_milliseconds(least)} ms, {what}."
        )
    return (
        f"{chosen.address} was cheapest, {_milliseconds(cost)} ms against {_milliseconds(next_cost)} ms at "
        f"{candidates[1].address}, {what}."
    )


def _would_choose(answer: router_pb2.ExplainPlacementResponse, weights: Sequence[str]) -> str:
    how = f" with {', '.join(weights)}" if weights else ""
    where = "the same worker" if answer.would_choose == answer.chosen else answer.would_choose
    return f"The prefix policy{how} would have chosen {where}."
