"""A prompt as rows of the model's input embeddings instead of token ids: raw bytes with a dtype and a shape."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from quire.errors import InvalidRequest

FLAG = "--enable-prompt-embeds"
# Limit for one prompt: a message on the wire has room for this and for everything else in a request.
MAX_PROMPT_EMBEDS_BYTES = 12 * 2**20
# Limit for all live requests of a gateway, or of an engine, together; images count as well.
MAX_LIVE_CONTENT_BYTES = 2**30
# Dtype → bytes per value.
DTYPES: Mapping[str, int] = MappingProxyType({"float32": 4, "float16": 2, "bfloat16": 2})
_NAME = "prompt_embeds"


def check_taken(hidden_size: int) -> None:
    """Checks that prompt embeddings are accepted.

    Args:
        hidden_size: see PromptEmbeds.check.

    Raises:
        InvalidRequest: they are not.
    """
    if not hidden_size:
        raise InvalidRequest(f"{_NAME} are only accepted by engines that are started with {FLAG}.", parameter=_NAME)


@dataclass(frozen=True)
class PromptEmbeds:
    """The embeddings of a prompt's positions: [tokens, hidden_size], row by row, little-endian."""

    dtype: str
    hidden_size: int
    data: bytes

    @property
    def num_tokens(self) -> int:
        """Number of rows; 0 if there are none, or the shape is invalid."""
        return len(self.data) // size if (size := self._row_bytes) > 0 else 0

    @functools.cached_property
    def digest(self) -> bytes:
        """Identifies the content: equal only for equal embeddings of the same dtype."""
        head = f"{self.dtype} {self.hidden_size} ".encode()
        return hashlib.sha256(head + hashlib.sha256(self.data).digest()).digest()

    def rows(self, first: int, end: int | None = None) -> PromptEmbeds:
        """The rows from `first` up to `end`; None means up to the last one."""
        last = None if end is None else end * self._row_bytes
        return PromptEmbeds(self.dtype, self.hidden_size, self.data[first * self._row_bytes : last])

    def check(self, hidden_size: int) -> None:
        """Checks whether a model can take them; the values themselves are not checked.

        Args:
            hidden_size: the model's hidden size; 0 if its worker accepts no embeddings.

        Raises:
            InvalidRequest: they are not accepted, or are malformed; the message says how.
        """
        check_taken(hidden_size)
        if self.dtype not in DTYPES:
            raise InvalidRequest(
                f"{_NAME} has the type {self.dtype[:20]}; supported are {', '.join(DTYPES)}.", parameter=_NAME
            )
        if self.hidden_size != hidden_size:
            raise InvalidRequest(
                f"{_NAME} has {self.hidden_size} values in each row, but the model's hidden size is {hidden_size}.",
                parameter=_NAME,
            )
        if len(self.data) > MAX_PROMPT_EMBEDS_BYTES:
            raise InvalidRequest(
                f"{_NAME} has {len(self.data)} bytes; at most {MAX_PROMPT_EMBEDS_BYTES} are allowed for a prompt: "
                f"{MAX_PROMPT_EMBEDS_BYTES // self._row_bytes} tokens of this type.",
                parameter=_NAME,
            )
        if not self.data or len(self.data) % self._row_bytes:
            raise InvalidRequest(f"{_NAME} must have at least one row, and only complete rows.", parameter=_NAME)

    @property
    def _row_bytes(self) -> int:
        return self.hidden_size * DTYPES.get(self.dtype, 0)
