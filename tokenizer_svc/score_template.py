"""Score templates: chat templates that write what a model is asked of a query and a document, by these two roles."""

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
    """The text of each pair.

    Args:
        variables: of the template; an `instruction` is told as a system message too, where templates differ.
        template: in place of the model's.
        max_chars: of all of them.

    Raises:
        TemplateRejection: one cannot be rendered, or they are too long together.
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
                f"The rendered pairs have more than {max_chars} characters together (--max-prompt-chars): send fewer."
            )
        texts.append(rendered.text)
    return texts


def _messages(query: str, document: str, variables: Mapping[str, Any]) -> list[dict[str, Any]]:
    instruction = variables.get("instruction")
    system = [{"role": "system", "content": instruction}] if isinstance(instruction, str) else []
    return [*system, {"role": "query", "content": query}, {"role": "document", "content": document}]
