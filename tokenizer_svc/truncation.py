"""Truncation of texts and of pairs of texts, to the same tokens that Transformers keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import InvalidRequest

_PARAMETER = "truncate_prompt_tokens"


@dataclass(frozen=True)
class Truncation:
    """How many tokens of a sequence are kept, and from which end."""

    num_tokens: int  # including special tokens, which are always kept
    keeps_end: bool = False  # keeps the last tokens instead of the first

    def room(self, num_special: int) -> int:
        """Number of tokens that can be kept in addition to the special ones.

        Raises:
            InvalidRequest: the special tokens leave no room.
        """
        if self.num_tokens <= num_special:
            raise InvalidRequest(
                f"{_PARAMETER} is {self.num_tokens}, but {num_special} special tokens are added to each text: it "
                f"must be at least {num_special + 1}.",
                parameter=_PARAMETER,
            )
        return self.num_tokens - num_special

    def cut(self, token_ids: Sequence[int], most: int) -> Sequence[int]:
        """Keeps at most `most` of a text's tokens."""
        if len(token_ids) <= most:
            return token_ids
        return token_ids[len(token_ids) - most :] if self.keeps_end else token_ids[:most]


def keeps_end(config: dict[str, Any]) -> bool:
    """Whether a tokenizer's configuration truncates at the start, keeping the end of a text."""
    return config.get("truncation_side") == "left"


def cuts_second_alone(definition: dict[str, Any]) -> bool:
    """Whether tokenizer.json truncates only the second text of a pair."""
    return (definition.get("truncation") or {}).get("strategy") == "OnlySecond"


def pair_lengths(first: int, second: int, room: int, *, second_alone: bool) -> tuple[int, int]:
    """Number of tokens to keep of each text of a pair.

    Args:
        first, second: number of tokens of each text.
        room: number of tokens for both together.

    Raises:
        InvalidRequest: the first text alone leaves no room, and may not be cut.
    """
    if first + second <= room:
        return first, second
    if second_alone:
        if first >= room:
            raise InvalidRequest(
                f"The first text of a pair has {first} tokens, but {_PARAMETER} leaves only {room} for both texts: "
                "shorten it, or raise the limit.",
                parameter=_PARAMETER,
            )
        return first, room - first
    short = min(first, second)
    kept_short, kept_long = (short, room - short) if room - short >= short else (room // 2, room - room // 2)
    return (kept_long, kept_short) if first > second else (kept_short, kept_long)
