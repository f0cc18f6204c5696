"""The score template of jina-reranker-m0, whose own template is for chats: the document, and then the query.

The engine adds the token behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quire.retrievers import DOCUMENT_FIRST
from quire.tokenizer.configuration import fields_of

_TEMPLATE = "\n".join(
    f"**{role.capitalize()}**:\n{{{{ (messages | selectattr('role', 'equalto', '{role}') | first)['content'] }}}}"
    for role in ("document", "query")
)


def jina_templates(folder: Path | None) -> Mapping[str, str]:
    """Name → template, for jina-reranker-m0; empty for any other model.

    Args:
        folder: with the model's files, if there is one.
    """
    names = fields_of(folder / "config.json").get("architectures") if folder else None
    return {"default": _TEMPLATE} if DOCUMENT_FIRST.intersection(names or ()) else {}
