"""How a text that is too long is cut, and how two texts are, to the tokens that Transformers leaves of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import InvalidRequest

_PARAMETER = "truncate_prompt_tokens"


@dataclass(frozen=True)
class Truncation:
    """What is left of a sequence."""

    num_tokens: int  # special ones counted, which always stay
    keeps_end: bool = False  # the last ones, not the first

    def room(self, num_special: int) -> int:
        """Tokens that stay beside special ones.

        Raises:
            InvalidRequest: there are none.
        """
        if self.num_tokens <= num_special:
            raise InvalidRequest(
                f"{_PARAMETER} is {self.num_tokens}, and {num_special} special tokens go around a text: it must be "
                f"at least {num_special + 1}.",
                parameter=_PARAMETER,
            )
        return self.num_tokens - num_special

    def cut(self, token_ids: Sequence[int], most: int) -> Sequence[int]:
        """So many of a text's tokens."""
        if len(token_ids) <= most:
            return token_ids
        return token_ids[len(token_ids) - most :] if self.keeps_end else token_ids[:most]


def keeps_end(config: dict[str, Any]) -> bool:
    """Whether a tokenizer's configuration has the end of a text stay."""
    return config.get("truncation_side") == "left"


def cuts_second_alone(definition: dict[str, Any]) -> bool:
    """Whether tokenizer.json has the second text of a pair cut alone."""
    return (definition.get("truncation") or {}).get("strategy") == "OnlySecond"


def pair_lengths(first: int, second: int, room: int, *, second_alone: bool) -> tuple[int, int]:
    """Tokens that stay of each text of a pair.

    Args:
        first, second: tokens of each.
        room: for both.

    Raises:
        InvalidRequest: the first one alone leaves no room, and may not be cut.
    """
    if first + second <= room:
        return first, second
    if second_alone:
        if first >= room:
            raise InvalidRequest(
                f"The first text of a pair has {first} tokens, and {_PARAMETER} leaves {room} for both: shorten it, or "
                "raise the limit.",
                parameter=_PARAMETER,
            )
        return first, room - first
    short = min(first, second)
    kept_short, kept_long = (short, room - short) if room - short >= short else (room // 2, room - room // 2)
    return (kept_long, kept_short) if first > second else (kept_short, kept_long)
