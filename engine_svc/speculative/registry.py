"""Drafting methods that use tokens alone, by name; all others run on the ranks."""

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
    """Creates the speculation that the configuration selects.

    Args:
        clock: the engine's clock, in seconds.
        overlaps: whether the engine plans steps before the last one has ended.
    """
    make = GUESSERS.get(config.chosen_method)
    return Speculation(config, make(config) if make else None, clock, overlaps)
