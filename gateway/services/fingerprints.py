"""`system_fingerprint` of OpenAI's answers: identifies what computes a model's answers."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

from quire.v1 import common_pb2, router_pb2

_LENGTH = 16  # hexadecimal digits


def system_fingerprints(
    infos: Iterable[common_pb2.ModelInfo], aliases: Iterable[router_pb2.ModelAlias]
) -> Mapping[str, str]:
    """Returns the fingerprints by the names that requests use: of models, adapters and aliases.

    A name has the same fingerprint as long as its workers generate the same tokens (`ModelInfo.fingerprint`), and
    another one if any of them comes to differ. Names with a worker that has no fingerprint are left out.

    Args:
        infos: one for each worker.
    """
    parts: dict[str, set[str]] = defaultdict(set)
    for info in infos:
        for name in info.served_model_names:
            parts[name].add(info.fingerprint)
        for adapter in info.adapters:
            parts[adapter.name].add(f"{info.fingerprint} {adapter.revision}" if info.fingerprint else "")
    for alias in aliases:
        parts.setdefault(alias.name, set()).update(*(parts.get(name, ()) for name in alias.models))
    return {name: _digest(found) for name, found in parts.items() if found and all(found)}


def _digest(parts: Iterable[str]) -> str:
    return f"fp_{hashlib.sha256(' '.join(sorted(parts)).encode()).hexdigest()[:_LENGTH]}"
