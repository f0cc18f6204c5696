"""Metrics of speculative decoding, for the engines that use it, by vLLM's current and former names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, Metric

from gateway.metrics.prometheus import ENGINE_LABELS, WHOLE_FLEET, counter, gauge, labels_of, ratio
from gateway.services.fleet import EngineKey
from quire.counters import HELP

if TYPE_CHECKING:
    from quire.v1.common_pb2 import EngineCounters


def speculation_metrics(prefix: str, counters: Mapping[EngineKey, EngineCounters]) -> Iterator[Metric]:
    """Yields nothing if no engine uses speculative decoding: a constant would suggest that it was measured."""
    guessing = {engine: count for engine, count in counters.items() if count.draft_accepted_tokens.bounds}
    if not guessing:
        return
    name = f"{prefix}spec_decode_"
    drafts = {engine: sum(count.draft_accepted_tokens.counts) for engine, count in guessing.items()}
    accepted = {engine: count.draft_accepted_tokens.sum for engine, count in guessing.items()}
    guessed = {engine: count.draft_tokens for engine, count in guessing.items()}
    emitted = {engine: count.draft_emitted_tokens for engine, count in guessing.items()}
    yield gauge(
        f"{name}draft_acceptance_rate", "Fraction of the verified draft tokens that were accepted, from 0 to 1.",
        {engine: ratio(accepted[engine], guessed[engine]) for engine in guessing},
    )  # fmt: skip
    yield gauge(
        f"{name}efficiency",
        "Tokens generated in steps that verify drafts, as a fraction of those if every draft token were accepted.",
        {engine: ratio(emitted[engine], guessed[engine] + drafts[engine]) for engine in guessing},
    )  # fmt: skip
    yield counter(f"{name}num_drafts", "Drafts verified by the model, each of one or more tokens.", drafts)
    yield counter(f"{name}num_draft_tokens", HELP["draft_tokens"], guessed)
    yield counter(f"{name}num_accepted_tokens", "Draft tokens accepted by the model.", accepted)
    yield counter(f"{name}num_emitted_tokens", HELP["draft_emitted_tokens"], emitted)
    yield counter(
        f"{name}num_failures", HELP["draft_failures"], {engine: guessing[engine].draft_failures for engine in guessing}
    )
    yield _by_position(f"{name}num_accepted_tokens_per_pos", guessing)


def _by_position(name: str, counters: Mapping[EngineKey, EngineCounters]) -> Metric:
    """Accepted tokens by position in the draft, from 0 up to the last position ever accepted."""
    family = CounterMetricFamily(
        name,
        f"Draft tokens accepted, by position in the draft, from 0. {WHOLE_FLEET}",
        labels=[*ENGINE_LABELS, "position"],
    )
    for engine, count in counters.items():
        right = list(count.draft_accepted_tokens.counts)  # right[n]: drafts of which exactly n tokens were accepted
        for position in range(len(right) - 1):
            if reached := sum(right[position + 1 :]):
                family.add_metric([*labels_of(engine), str(position)], reached)
    return family
