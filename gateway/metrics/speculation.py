"""Metrics of speculative decoding, for the models that use it, by vLLM's current and former names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, Metric

from gateway.metrics.prometheus import MODEL_LABEL, WHOLE_FLEET, counter, gauge, ratio
from quire.counters import HELP

if TYPE_CHECKING:
    from quire.v1.common_pb2 import EngineCounters


def speculation_metrics(prefix: str, counters: Mapping[str, EngineCounters]) -> Iterator[Metric]:
    """Yields nothing if no engine uses speculative decoding: a constant would suggest that it was measured.

    Args:
        counters: by model.
    """
    guessing = {model: count for model, count in counters.items() if count.draft_accepted_tokens.bounds}
    if not guessing:
        return
    name = f"{prefix}spec_decode_"
    drafts = {model: sum(count.draft_accepted_tokens.counts) for model, count in guessing.items()}
    accepted = {model: count.draft_accepted_tokens.sum for model, count in guessing.items()}
    guessed = {model: count.draft_tokens for model, count in guessing.items()}
    emitted = {model: count.draft_emitted_tokens for model, count in guessing.items()}
    yield gauge(
        f"{name}draft_acceptance_rate", "Fraction of the verified draft tokens that were accepted, from 0 to 1.",
        {model: ratio(accepted[model], guessed[model]) for model in guessing},
    )  # fmt: skip
    yield gauge(
        f"{name}efficiency",
        "Tokens generated in steps that verify drafts, as a fraction of those if every draft token were accepted.",
        {model: ratio(emitted[model], guessed[model] + drafts[model]) for model in guessing},
    )  # fmt: skip
    yield counter(f"{name}num_drafts", "Drafts verified by the model, each of one or more tokens.", drafts)
    yield counter(f"{name}num_draft_tokens", HELP["draft_tokens"], guessed)
    yield counter(f"{name}num_accepted_tokens", "Draft tokens accepted by the model.", accepted)
    yield counter(f"{name}num_emitted_tokens", HELP["draft_emitted_tokens"], emitted)
    yield counter(
        f"{name}num_failures", HELP["draft_failures"], {model: guessing[model].draft_failures for model in guessing}
    )
    yield _by_position(f"{name}num_accepted_tokens_per_pos", guessing)


def _by_position(name: str, counters: Mapping[str, EngineCounters]) -> Metric:
    """Accepted tokens by position in the draft, from 0 up to the last position ever accepted."""
    family = CounterMetricFamily(
        name,
        f"Draft tokens accepted, by position in the draft, from 0. {WHOLE_FLEET}",
        labels=[MODEL_LABEL, "position"],
    )
    for model, count in counters.items():
        right = list(count.draft_accepted_tokens.counts)  # right[n]: drafts of which exactly n tokens were accepted
        for position in range(len(right) - 1):
            if reached := sum(right[position + 1 :]):
                family.add_metric([model, str(position)], reached)
    return family
