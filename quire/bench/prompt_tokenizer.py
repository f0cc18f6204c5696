"""What texts are measured with: a tokenizer's files, or a server that has one."""

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
    """Texts from tokens and tokens from texts."""

    @abstractmethod
    def encode(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """
        Args:
            special_tokens: whether those are added that go around a prompt.
        """

    @abstractmethod
    def decode(self, token_ids: list[int]) -> str:
        """The text."""

    @abstractmethod
    def draw(self, count: int, source: Random) -> list[int]:
        """Ordinary tokens at random."""

    @cached_property
    def num_special_tokens(self) -> int:
        """How many tokens go around a prompt."""
        return len(self.encode("a", special_tokens=True)) - len(self.encode("a"))

    def fit(self, token_ids: list[int], source: Random) -> tuple[str, int]:
        """A text that is as many tokens as these when it is tokenized, and how many it is.

        It begins as theirs. Tokens at random join to others when they are text; whatever is then too much is cut off,
        and what is missing comes at random.
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
        """Cuts off what does not stay as it is, and adds words of one token; None if there is no way."""
        for cut in range(1, min(wanted, 8) + 1):
            text = self.decode(token_ids[: wanted - cut])
            missing = wanted - len(self.encode(text))
            for filler in _FILLERS if missing >= 0 else ():
                if len(self.encode(text + missing * filler)) == wanted:
                    return text + missing * filler, wanted
        return None


class FolderTokenizer(PromptTokenizer):
    """One of files on this machine, or of the hub."""

    def __init__(self, model: ModelOptions) -> None:
        """
        Args:
            model: whose tokenizer it is, with the place of it.

        Raises:
            StartupError: there is none of that name, or it cannot be read.
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
        """Whether it stands for a text that is this token, and not for part of a character or a special token."""
        found = self._is_ordinary.get(token_id)
        if found is None:
            text = self._tokenizer.decode([token_id])  # a special token has no text here
            found = self._is_ordinary[token_id] = bool(text) and self.encode(text) == [token_id]
        return found


class ServerTokenizer(PromptTokenizer):
    """That of a server: vLLM's and SGLang's interface, or llama.cpp's."""

    def __init__(self, api: ServerApi, model: str) -> None:
        """
        Raises:
            StartupError: the server has neither interface, or not the model.
        """
        self._api, self._model = api, model
        for self._text_key, self._special_key in (
            ("prompt", "add_special_tokens"), ("content", "add_special"),
        ):  # fmt: skip
            if self._tokens("a", special_tokens=False):
                break
        else:
            raise StartupError(
                f"{api.url} does not count tokens: it has no /tokenize. Name the model's tokenizer with "
                "--tokenizer FOLDER, or send a file as it is with --dataset-name custom."
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
        """Tokens of ordinary text; a server does not say which others there are."""
        return sorted(set(self.encode("\n".join(verse()))))

    def draw(self, count: int, source: Random) -> list[int]:
        return source.choices(self._words, k=count)


def choose_tokenizer(name: str | None, model: str | None, api: ServerApi, served: str) -> PromptTokenizer:
    """
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
