"""The tokenizer that prompts are measured with: from files, or of a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from quire.bench.api import ServerApi
from quire.bench.verse import verse
from quire.errors import StartupError
from quire.extras import needed
from quire.options.model import ModelOptions

_TRIES = 10
_FILLERS = (" a", " the", "a", ".", "\n")


class PromptTokenizer(ABC):
    """Converts texts to tokens and back."""

    @abstractmethod
    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            special_tokens: whether to add the special tokens that surround a prompt.
        """

    @abstractmethod
    def decode(self, token_ids: list[int]) -> str:
        """The text of token ids."""

    @abstractmethod
    def draw(self, count: int, source: Random) -> list[int]:
        """Random ordinary tokens."""

    @cached_property
    def num_special_tokens(self) -> int:
        """Number of special tokens that surround a prompt."""
        return len(self.encode("a", special_tokens=True)) - len(self.encode("a"))

    def fit(self, token_ids: list[int], source: Random) -> tuple[str, int]:
        """A text that encodes to as many tokens as these, and its actual number of tokens.

        It begins like their text. Random tokens may merge with others once they are text; excess tokens are cut off,
        and missing ones are drawn at random.
        """
        wanted, text = len(token_ids), ""
        for _ in range(_TRIES):
            text = self.decode(token_ids)
            token_ids = self.encode(text)
            if len(token_ids) == wanted:
                return text, wanted
            token_ids = token_ids[:wanted] + self.draw(max(0, wanted - len(token_ids)), source)
        return self._fill(token_ids, wanted) or (text, len(self.encode(text)))

    def _fill(self, token_ids: list[int], wanted: int) -> tuple[str, int] | None:
        """Cuts off tokens that do not survive encoding, and adds words of one token; None if there is no way."""
        for cut in range(1, min(wanted, 8) + 1):
            text = self.decode(token_ids[: wanted - cut])
            missing = wanted - len(self.encode(text))
            for filler in _FILLERS if missing >= 0 else ():
                if len(self.encode(text + missing * filler)) == wanted:
                    return text + missing * filler, wanted
        return None


class FolderTokenizer(PromptTokenizer):
    """A tokenizer from files on this machine, or from the hub."""

    def __init__(self, model: ModelOptions) -> None:
        """
        Args:
            model: the model whose tokenizer it is, and where to find it.

        Raises:
            StartupError: there is no tokenizer of that name, or it cannot be read.
        """
        with needed("--tokenizer", "tokenizers", "tokenizer"):
            from quire.tokenizer.files import read_tokenizer_files, tokenizer_folder
        self._tokenizer: Any = read_tokenizer_files(tokenizer_folder(model)).tokenizer
        self._size = self._tokenizer.get_vocab_size()
        self._is_ordinary: dict[int, bool] = {}

    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special_tokens).ids
        return ids

    def decode(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    def draw(self, count: int, source: Random) -> list[int]:
        drawn: list[int] = []
        for _ in range(100 * count):
            if len(drawn) == count:
                break
            token_id = source.randrange(self._size)
            if self._ordinary(token_id):
                drawn.append(token_id)
        return drawn + self.encode(_FILLERS[0])[:1] * (count - len(drawn))

    def _ordinary(self, token_id: int) -> bool:
        """Whether the token's text encodes back to it, so that it is neither part of a character nor a special
        token."""
        found = self._is_ordinary.get(token_id)
        if found is None:
            text = self._tokenizer.decode([token_id])  # a special token has no text here
            found = self._is_ordinary[token_id] = bool(text) and self.encode(text) == [token_id]
        return found


class ServerTokenizer(PromptTokenizer):
    """A server's tokenizer, over vLLM's and SGLang's interface, or llama.cpp's."""

    def __init__(self, api: ServerApi, model: str) -> None:
        """
        Raises:
            StartupError: the server has neither interface, or does not serve the model.
        """
        self._api, self._model = api, model
        for self._text_key, self._special_key in (
            ("prompt", "add_special_tokens"), ("content", "add_special"),
        ):  # fmt: skip
            if self._tokens("a", special_tokens=False):
                break
        else:
            raise StartupError(
                f"{api.url} cannot count tokens: it has no /tokenize. Name the model's tokenizer with --tokenizer "
                "FOLDER, or send a file's prompts as they are with --dataset-name custom."
            )

    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        if text and not (found := self._tokens(text, special_tokens=special_tokens)):
            raise StartupError(
                f"{self._api.url}/tokenize has stopped answering. Name the tokenizer with --tokenizer FOLDER."
            )
        return found if text else []

    def _tokens(self, text: str, *, special_tokens: bool) -> list[int]:
        body = {"model": self._model, self._text_key: text, self._special_key: special_tokens}
        status, answer = self._api.post("/tokenize", body)
        error = answer.get("error")
        if isinstance(error, dict) and error.get("param") == "model":
            raise StartupError(
                f"{self._api.url} refuses the model {self._model!r} (--model, --served-model-name): "
                f"{error.get('message')}"
            )
        return list(answer.get("tokens") or ()) if status == 200 else []

    def decode(self, token_ids: list[int]) -> str:
        _, answer = self._api.post("/detokenize", {"model": self._model, "tokens": token_ids})
        for key in ("prompt", "text", "content"):
            if isinstance(found := answer.get(key), str):
                return found
        raise StartupError(f"{self._api.url}/detokenize answered {answer}. Name the tokenizer with --tokenizer FOLDER.")

    @cached_property
    def _words(self) -> list[int]:
        """Tokens of ordinary text; a server does not list its other tokens."""
        return sorted(set(self.encode("\n".join(verse()))))

    def draw(self, count: int, source: Random) -> list[int]:
        return source.choices(self._words, k=count)


def choose_tokenizer(name: str | None, model: str | None, api: ServerApi, served: str) -> PromptTokenizer:
    """The tokenizer from files if one is named or the model is a folder, else the server's.

    Args:
        name: --tokenizer.
        model: --model.
        served: the model's name in requests.

    Raises:
        StartupError: there is no such folder, or the server has no tokenizer to offer.
    """
    if name or (model and Path(model).exists()):
        return FolderTokenizer(ModelOptions(model=str(name or model)))
    return ServerTokenizer(api, served)
