"""A prompt as rows of the model's input embeddings, in place of token ids: raw bytes, their type and their shape."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from quire.errors import InvalidRequest

FLAG = "--enable-prompt-embeds"
# Of one prompt: a message on the wire has room for it, and for all else that goes with a request.
MAX_PROMPT_EMBEDS_BYTES = 12 * 2**20
# Of all requests that a gateway, or an engine, has at a time.
MAX_LIVE_EMBEDS_BYTES = 2**30
# Bytes of a value, by type.
DTYPES: Mapping[str, int] = MappingProxyType({"float32": 4, "float16": 2, "bfloat16": 2})
_NAME = "prompt_embeds"


def check_taken(hidden_size: int) -> None:
    """
    Args:
        hidden_size: see PromptEmbeds.check.

    Raises:
        InvalidRequest: none are taken.
    """
    if not hidden_size:
        raise InvalidRequest(f"{_NAME} are taken only by engines that are started with {FLAG}.", parameter=_NAME)


@dataclass(frozen=True)
class PromptEmbeds:
    """What stands at each position of a prompt: [tokens, hidden_size], row by row, little-endian."""

    dtype: str
    hidden_size: int
    data: bytes

    @property
    def num_tokens(self) -> int:
        """Rows; 0 where there are none, or the shape is none."""
        return len(self.data) // size if (size := self._row_bytes) > 0 else 0

    @functools.cached_property
    def digest(self) -> bytes:
        """Names the content: equal for equal embeddings of one type, and for no others."""
        head = f"{self.dtype} {self.hidden_size} ".encode()
        return hashlib.sha256(head + hashlib.sha256(self.data).digest()).digest()

    def rows(self, first: int, end: int | None = None) -> PromptEmbeds:
        """Some of the rows."""
        last = None if end is None else end * self._row_bytes
        return PromptEmbeds(self.dtype, self.hidden_size, self.data[first * self._row_bytes : last])

    def check(self, hidden_size: int) -> None:
        """Whether a model can take them, but for their values.

        Args:
            hidden_size: values of each embedding of the model; 0 where its worker takes none.

        Raises:
            InvalidRequest: says what is wrong with them, or that none are taken.
        """
        check_taken(hidden_size)
        if self.dtype not in DTYPES:
            raise InvalidRequest(f"{_NAME} is of {self.dtype[:20]}; taken are {', '.join(DTYPES)}.", parameter=_NAME)
        if self.hidden_size != hidden_size:
            raise InvalidRequest(
                f"{_NAME} has {self.hidden_size} values in each row, and the model's hidden size is {hidden_size}.",
                parameter=_NAME,
            )
        if len(self.data) > MAX_PROMPT_EMBEDS_BYTES:
            raise InvalidRequest(
                f"{_NAME} has {len(self.data)} bytes; at most {MAX_PROMPT_EMBEDS_BYTES} are taken for a prompt: "
                f"{MAX_PROMPT_EMBEDS_BYTES // self._row_bytes} tokens of this type.",
                parameter=_NAME,
            )
        if not self.data or len(self.data) % self._row_bytes:
            raise InvalidRequest(f"{_NAME} needs one row at least, and whole ones.", parameter=_NAME)

    @property
    def _row_bytes(self) -> int:
        return self.hidden_size * DTYPES.get(self.dtype, 0)
