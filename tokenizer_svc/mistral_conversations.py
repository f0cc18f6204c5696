"""Renders conversations with Mistral's own package, straight to tokens.

User text can never become a control token, whatever it looks like, because texts and control tokens are joined as ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from tokenizer_svc.chat_template import TemplateRejection, too_long
from tokenizer_svc.developer_role import without_developers
from tokenizer_svc.rendered import Rendered


class MistralConversations:
    """Renders like `ChatTemplates`, but without a template."""

    def __init__(self, path: str, max_chars: int) -> None:
        """
        Args:
            path: path of tekken.json.
            max_chars: maximum length of a rendered text.
        """
        self._tokenizer = MistralTokenizer.from_file(path)
        self._max_chars = max_chars

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        variables: Mapping[str, Any],
        template: str | None,
        placeholders: Mapping[str, str] = {},
        interleaves: bool = False,
    ) -> Rendered:
        """See `ChatTemplates.render`. Conversations with images are refused.

        Raises:
            TemplateRejection: the conversation cannot be rendered.
        """
        if template or variables:
            raise TemplateRejection(
                "chat_template and chat_template_kwargs are not supported: this server renders conversations with "
                "mistral-common (--tokenizer-mode mistral).",
                "chat_template" if template else "chat_template_kwargs",
            )
        _check_texts(messages)
        try:
            request = ChatCompletionRequest.from_openai(
                messages=without_developers(messages), tools=tools, continue_final_message=continue_final_message
            )
            tokens = self._tokenizer.encode_chat_completion(request).tokens
        except Exception as error:  # the package may raise anything; the conversation does not have the form it needs
            raise TemplateRejection(f"mistral-common rejects the conversation: {str(error)[:1500]}") from error
        text = self._tokenizer.decode(tokens, special_token_policy=SpecialTokenPolicy.KEEP)
        if len(text) > self._max_chars:
            raise too_long(self._max_chars)
        return Rendered(text, tuple(tokens))


def _check_texts(messages: list[dict[str, Any]]) -> None:
    """Accepts only text, because the package would fetch images from wherever a message says, including local files.

    Raises:
        TemplateRejection: a part of a message is something other than text.
    """
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            if kind not in ("text", "thinking"):
                raise TemplateRejection(
                    f"messages has content of the type {kind!r}; only text is supported with --tokenizer-mode mistral."
                )
