"""A folder to convert, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from quire.errors import StartupError
from quire.tokenizer.configuration import fields_of, nameless_tokens, read_json, special_tokens, text_of
from quire.tokenizer.definition import added, around
from quire.tokenizer.vocabulary_files import WHOLE

MAKE_IT = (
    f"Make {WHOLE} with `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)` of Transformers, or name "
    "another folder with --tokenizer."
)
_OF_ANY_KIND = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")
_MOST_GAPS = 2**16
_PROPERTIES = ("lstrip", "rstrip", "single_word", "normalized")


@dataclass(frozen=True)
class Converted:
    """A tokenizer in the form of tokenizer.json."""

    definition: dict[str, Any]
    special_tokens: dict[str, str]  # "eos_token" → its text


@dataclass(frozen=True)
class Source:
    """A folder without tokenizer.json.

    Attributes:
        config: tokenizer_config.json, over special_tokens_map.json.
    """

    folder: Path
    config: Mapping[str, Any]

    @cached_property
    def tokenizer_class(self) -> str:
        """The name of Transformers' class, without Fast; empty if the folder names none, or one of any kind."""
        configs = (self.config, fields_of(self.folder / "config.json"))
        name = next((str(found) for config in configs if (found := config.get("tokenizer_class"))), "")
        return "" if name in _OF_ANY_KIND else name.removesuffix("Fast")

    @cached_property
    def model_type(self) -> str:
        """The model_type in config.json; empty if there is none."""
        return str(fields_of(self.folder / "config.json").get("model_type") or "")

    def flag(self, name: str, default: bool) -> bool:
        """A boolean of the configuration."""
        found = self.config.get(name)
        return default if found is None else bool(found)

    def refuse_class(self, file: str, known: Sequence[str]) -> StartupError:
        """The error that there is no conversion for this class."""
        named = (
            f"has the tokenizer_class {self.tokenizer_class}" if self.tokenizer_class else "names no tokenizer_class"
        )
        return StartupError(
            f"{self.folder} {named}, for which {file} cannot be read; for {', '.join(known)} it can. {MAKE_IT}"
        )

    def named_tokens(self, defaults: Mapping[str, str], vocabulary: Mapping[str, int]) -> dict[str, str]:
        """The special tokens by name.

        Args:
            defaults: taken where the configuration does not mention them and the vocabulary has them.
        """
        absent = {name: text for name, text in defaults.items() if self.config.get(name, "") == ""}
        named = {name: text for name, text in special_tokens(self.config).items() if text}
        return {name: text for name, text in absent.items() if text in vocabulary} | named

    def place_tokens(
        self, vocabulary: dict[str, int], own: Mapping[int, Any] | None = None, size: int = 0
    ) -> list[dict[str, Any]]:
        """Puts the added tokens that the folder numbers into the vocabulary, in place of what has their numbers there,
        and fills gaps between the numbers.

        Args:
            own: further ones: id → text of a special token, or object as in added_tokens_decoder.
            size: the least size of the vocabulary.

        Returns:
            added tokens, in the form of tokenizer.json.
        """
        texts = {index: text for text, index in vocabulary.items()}
        tokens: dict[int, Any] = {**(own or {}), **dict(self._numbered_tokens())}
        size = max([size, *(index + 1 for index in (*texts, *tokens))])
        if size > len(texts) + len(tokens) + _MOST_GAPS:
            raise StartupError(f"{self.folder} numbers a token {size - 1}, but has only {len(texts) + len(tokens)}.")
        for index in range(size):
            if index not in texts and index not in tokens:
                tokens[index] = f"<|reserved_token_{index}|>"
        found = []
        for index, token in sorted(tokens.items()):
            text = text_of(token)
            if not text:
                raise StartupError(f"{self.folder}: the added token {index} has no text.")
            if text not in vocabulary:
                vocabulary.pop(texts.get(index, ""), None)
                vocabulary[text] = index
            properties = token if isinstance(token, dict) else {"special": True}
            known = {name: bool(properties[name]) for name in _PROPERTIES if name in properties}
            found.append(added(vocabulary[text], text, special=bool(properties.get("special")), **known))
        return found

    def framing(
        self, special: Mapping[str, str], vocabulary: Mapping[str, int], *, begins: bool = False
    ) -> dict[str, Any] | None:
        """The post-processor for add_bos_token and add_eos_token.

        Args:
            begins: whether texts begin with the BOS token if the configuration does not say.
        """
        first = [special["bos_token"]] if self.flag("add_bos_token", begins) and "bos_token" in special else []
        last = [special["eos_token"]] if self.flag("add_eos_token", False) and "eos_token" in special else []
        return around(vocabulary, first, last)

    def _numbered_tokens(self) -> Iterator[tuple[int, Any]]:
        """Id → text or object: the older added_tokens.json, then added_tokens_decoder."""
        special = {*special_tokens(self.config).values(), *map(text_of, nameless_tokens(self.config))}
        for text, index in read_json(self.folder / "added_tokens.json").items():
            yield int(index), {"content": text, "special": text in special, "normalized": text not in special}
        for number, token in (self.config.get("added_tokens_decoder") or {}).items():
            yield int(number), token
