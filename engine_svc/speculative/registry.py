"""The methods that guess from tokens alone, by name; the ranks run all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from engine_svc.speculative.guesser import Guesser
from engine_svc.speculative.ngram import NgramGuesser
from engine_svc.speculative.speculation import Speculation
from engine_svc.speculative.suffix import SuffixGuesser
from quire.options.speculative import SpeculativeConfig

GUESSERS: Mapping[str, Callable[[SpeculativeConfig], Guesser]] = MappingProxyType(
    {
        "ngram": lambda config: NgramGuesser(*config.lookup_lengths),
        "suffix": SuffixGuesser,
    }
)


def make_speculation(config: SpeculativeConfig, clock: Callable[[], float], overlaps: bool) -> Speculation:
    """
    Args:
        clock: seconds; the engine's.
        overlaps: whether the engine plans steps before the last one has ended.
    """
    make = GUESSERS.get(config.chosen_method)
    return Speculation(config, make(config) if make else None, clock, overlaps)
