"""Metrics of the named API keys, by name: as many as the file has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric

from gateway.api_keys import ApiKeys

_KEY_LABEL = "api_key_name"


def api_key_metrics(keys: ApiKeys, note: str) -> Iterator[Metric]:
    """Yields what the requests of each key have used; nothing if there are none.

    Args:
        note: ends each metric's description.
    """
    if not (named := {key.entry.name: key for key in keys.named}):
        return
    yield _counter("requests", f"Requests admitted. {note}", {name: key.requests for name, key in named.items()})
    yield _counter(
        "prompt_tokens", f"Tokens of the prompts of requests that have ended. {note}",
        {name: key.prompt_tokens for name, key in named.items()},
    )  # fmt: skip
    yield _counter(
        "generation_tokens", f"Tokens generated for requests that have ended. {note}",
        {name: key.generation_tokens for name, key in named.items()},
    )  # fmt: skip
    refused = CounterMetricFamily(
        "quire_api_key_refused_requests", f"Requests refused, by the limit that they had reached. {note}",
        labels=[_KEY_LABEL, "limit"],
    )  # fmt: skip
    for name, key in named.items():
        for limit, count in key.refused.items():
            refused.add_metric([name, limit], count)
    yield refused


def _counter(name: str, text: str, values: Mapping[str, int]) -> Metric:
    """Builds a counter with a value per name of a key."""
    family = CounterMetricFamily(f"quire_api_key_{name}", text, labels=[_KEY_LABEL])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
