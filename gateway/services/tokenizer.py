"""Text to token ids and back: the unary calls of the tokenizer service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import msgspec

from gateway.services.tokenizers import Tokenizers
from quire.v1 import tokenizer_pb2

_TEXTS_AT_ONCE = 1024  # of one call


class Tokenizer:
    """The unary calls of the tokenizer service."""

    def __init__(self, replicas: Tokenizers) -> None:
        self._replicas = replicas

    async def encode(
        self,
        texts: Sequence[str],
        add_special_tokens: bool,
        *,
        block_size: int = 0,
        cache_salt: str = "",
        max_tokens: int = 0,
    ) -> list[tokenizer_pb2.TokenSequence]:
        """Token ids of each text, and the keys of their blocks of `block_size` tokens if wanted.

        Raises:
            ContextTooLong: a text has more than `max_tokens`, which may be known before it is encoded.
        """
        found: list[tokenizer_pb2.TokenSequence] = []
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            request = tokenizer_pb2.EncodeRequest(
                texts=texts[start : start + _TEXTS_AT_ONCE], add_special_tokens=add_special_tokens,
                block_size=block_size, cache_salt=cache_salt, max_tokens=max_tokens,
            )  # fmt: skip
            found += (await self._replicas.call("Encode", request)).sequences
        return found

    async def decode(self, request: tokenizer_pb2.DecodeRequest) -> str:
        """The text of token ids."""
        return str((await self._replicas.call("Decode", request)).text)

    async def token_bytes(self, token_ids: Set[int]) -> dict[int, bytes]:
        """The bytes of each token by itself."""
        request = tokenizer_pb2.DecodeRequest(token_ids=token_ids, return_token_bytes=True)
        return dict(zip(token_ids, (await self._replicas.call("Decode", request)).token_bytes, strict=True))

    async def token_strings(self, token_ids: Set[int]) -> dict[int, str]:
        """Each token as the vocabulary spells it."""
        request = tokenizer_pb2.DecodeRequest(token_ids=token_ids, return_token_strings=True)
        return dict(zip(token_ids, (await self._replicas.call("Decode", request)).token_strings, strict=True))

    async def render_chat(
        self,
        messages_json: bytes,
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        add_special_tokens: bool,
        template: str | None,
        kwargs: Mapping[str, Any] | None,
        block_size: int = 0,
        cache_salt: str = "",
        max_tokens: int = 0,
    ) -> tokenizer_pb2.TokenSequence:
        """Token ids of a conversation, and what else is wanted, as with `encode`."""
        request = tokenizer_pb2.RenderChatRequest(
            messages_json=messages_json,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            add_special_tokens=add_special_tokens,
            chat_template=template or "",
            template_kwargs_json=msgspec.json.encode(kwargs) if kwargs else b"",
            block_size=block_size,
            cache_salt=cache_salt,
            max_tokens=max_tokens,
        )
        sequence: tokenizer_pb2.TokenSequence = (await self._replicas.call("RenderChat", request)).sequence
        return sequence

    async def info(self) -> tokenizer_pb2.GetTokenizerInfoResponse:
        """What the service has loaded."""
        answer: tokenizer_pb2.GetTokenizerInfoResponse
        answer = await self._replicas.call("GetTokenizerInfo", tokenizer_pb2.GetTokenizerInfoRequest())
        return answer


def decode_request(token_ids: Iterable[int]) -> tokenizer_pb2.DecodeRequest:
    """Takes long for millions of token ids, other than the call itself."""
    return tokenizer_pb2.DecodeRequest(token_ids=token_ids)
