"""The bytes that a token stands for.

Byte-level and SentencePiece-like vocabularies spell bytes with characters of their own. The text of a sequence of
tokens is the concatenation of their bytes, which is what makes exact incremental detokenization possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Spelling = Callable[[str], bytes]


class TokenBytes:
    """Maps token ids to bytes, for vocabularies whose decoder treats each token separately.

    Attributes:
        strips_first_space: whether the first space of a sequence belongs to the spelling and not to the text.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, spelling: Spelling, strips_first_space: bool) -> None:
        self._tokenizer = tokenizer
        self._spelling = spelling
        self._cache: dict[int, bytes] = {}
        self.strips_first_space = strips_first_space

    def __getitem__(self, token_id: int) -> bytes:
        """The token's bytes; empty for an id beyond the vocabulary, as models pad theirs."""
        found = self._cache.get(token_id)
        if found is None:
            token = self._tokenizer.id_to_token(token_id)
            found = b"" if token is None else self._spelling(token)
            if token is not None:
                self._cache[token_id] = found
        return found


def make_token_bytes(tokenizer: tokenizers.Tokenizer, definition: dict[str, Any]) -> TokenBytes | None:
    """The table for a tokenizer; None if its decoder combines several tokens.

    Args:
        definition: the parsed tokenizer.json.
    """
    steps = list(_decoder_steps(definition.get("decoder")))
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return TokenBytes(tokenizer, _spell_byte_level, strips_first_space=False)
    if "Metaspace" in kinds and set(kinds) <= {"Metaspace", "ByteFallback", "Fuse"}:
        step = steps[kinds.index("Metaspace")]
        return TokenBytes(tokenizer, _spell_pieces(step["replacement"]), step.get("prepend_scheme") != "never")
    if kinds[:1] == ["Replace"] and set(kinds[1:]) <= {"ByteFallback", "Fuse", "Strip"}:
        mark = (steps[0].get("pattern") or {}).get("String")
        strip = next((step for step in steps if step["type"] == "Strip"), None)
        known_strip = strip is None or (strip["content"], strip["start"], strip["stop"]) == (" ", 1, 0)
        if mark and steps[0].get("content") == " " and known_strip:
            return TokenBytes(tokenizer, _spell_pieces(mark), strip is not None)
    return None


def _decoder_steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder and decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _decoder_steps(step)
    elif decoder:
        yield decoder


def _byte_level_alphabet() -> dict[str, int]:
    """Character → byte: printable Latin-1 stands for itself, the rest is moved to 256 and up (GPT-2's table)."""
    itself = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    moved = [byte for byte in range(256) if byte not in set(itself)]
    return {chr(byte): byte for byte in itself} | {chr(256 + index): byte for index, byte in enumerate(moved)}


_ALPHABET = _byte_level_alphabet()
_CHARACTERS = {byte: character for character, byte in _ALPHABET.items()}


def spelling_of(text: bytes) -> str:
    """The bytes as byte-level vocabularies spell them."""
    return "".join(map(_CHARACTERS.__getitem__, text))


def _spell_byte_level(token: str) -> bytes:
    spelled = [_ALPHABET.get(character) for character in token]
    if None in spelled:  # an added token, stored as plain text
        return token.encode()
    return bytes(byte for byte in spelled if byte is not None)


def _spell_pieces(mark: str) -> Spelling:
    def spell(token: str) -> bytes:
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        return token.replace(mark, " ").encode()

    return spell
