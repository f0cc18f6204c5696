"""Model aliases, and the traffic split of one name between several models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quire.errors import StartupError


@dataclass(frozen=True)
class Share:
    """One model behind an alias, with its share of the traffic."""

    model: str
    weight: float


class Aliases:
    """Maps alias names to models."""

    def __init__(self, shares: Mapping[str, Sequence[Share]]) -> None:
        self._shares = shares

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Aliases:
        """
        Args:
            texts: NAME=MODEL[:WEIGHT][,MODEL[:WEIGHT]...]

        Raises:
            StartupError: one is malformed.
        """
        found: dict[str, Sequence[Share]] = {}
        for text in texts:
            name, _, models = text.partition("=")
            shares = [_share(text, each) for each in models.split(",")]
            if not name or name in found:
                raise StartupError(f"--model-alias {text} " + ("needs a name." if not name else "is named twice."))
            found[name] = sorted(shares, key=lambda share: -share.weight)
        chained = {share.model for shares in found.values() for share in shares} & found.keys()
        if chained:
            raise StartupError(f"--model-alias: {', '.join(sorted(chained))} is an alias itself; name the model.")
        return cls(found)

    @property
    def names(self) -> Mapping[str, Sequence[str]]:
        """Name → models, the one with the greatest share first."""
        return {name: [share.model for share in shares] for name, shares in self._shares.items()}

    def resolve(self, name: str, conversation: str) -> str:
        """The model that a name stands for: itself, or for an alias one of its models, always the same one in a
        conversation."""
        shares = self._shares.get(name)
        if shares is None:
            return name
        key = f"{name}\0{conversation}".encode()
        point = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") / 2**64
        point *= sum(share.weight for share in shares)
        for share in shares:
            point -= share.weight
            if point < 0:
                break
        return share.model


def _share(text: str, model: str) -> Share:
    """Parses MODEL[:WEIGHT]. A model's name may contain colons: only a number after the last one is a weight."""
    name, _, weight = model.rpartition(":")
    try:
        share = Share(name, float(weight)) if name else Share(model, 1.0)
    except ValueError:
        share = Share(model, 1.0)
    if not share.model or not 0 < share.weight < 1e9:
        raise StartupError(
            f"--model-alias {text} is not NAME=MODEL[:WEIGHT][,MODEL[:WEIGHT]...], with weights above 0."
        )
    return share
