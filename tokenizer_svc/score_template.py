"""Score templates: chat templates that write a scoring prompt from messages with the roles query and document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizer_svc.chat_template import TemplateRejection
from tokenizer_svc.rendered import Templates


def score_texts(
    templates: Templates,
    pairs: Sequence[tuple[str, str]],
    *,
    variables: Mapping[str, Any],
    template: str | None,
    max_chars: int,
) -> list[str]:
    """Renders the text of each pair.

    Args:
        variables: template variables; an `instruction` is also passed as a system message, as templates differ.
        template: used in place of the model's; None means the model's.
        max_chars: limit on all texts together.

    Raises:
        TemplateRejection: a pair cannot be rendered, or the texts are too long together.
    """
    texts, length = [], 0
    for query, document in pairs:
        rendered = templates.render(
            _messages(query, document, variables), None, add_generation_prompt=True, continue_final_message=False,
            variables=variables, template=template,
        )  # fmt: skip
        length += len(rendered.text)
        if length > max_chars:
            raise TemplateRejection(
                f"The rendered pairs have more than {max_chars} characters in total (--max-prompt-chars): send fewer."
            )
        texts.append(rendered.text)
    return texts


def _messages(query: str, document: str, variables: Mapping[str, Any]) -> list[dict[str, Any]]:
    instruction = variables.get("instruction")
    system = [{"role": "system", "content": instruction}] if isinstance(instruction, str) else []
    return [*system, {"role": "query", "content": query}, {"role": "document", "content": document}]
