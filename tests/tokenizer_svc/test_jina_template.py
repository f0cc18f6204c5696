"""The score template of jina-reranker-m0 goes before its chat template."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from quire.options.tokenizer import TokenizerOptions
from quire.tokenizer.files import read_tokenizer_files
from tests.support.minilm import minilm_folder
from tokenizer_svc.chat_template import make_environment
from tokenizer_svc.main import choose_templates
from tokenizer_svc.renderer import is_score_template


@pytest.mark.parametrize("name", ["JinaVLForRanking", "Qwen2VLForConditionalGeneration"])
def test_a_document_and_then_the_query(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
    files = replace(read_tokenizer_files(minilm_folder()), folder=tmp_path, chat_templates={"default": "a chat"})
    template = choose_templates(files, TokenizerOptions())["default"]
    if name != "JinaVLForRanking":
        assert template == "a chat"
        return
    assert is_score_template(template)
    messages = [{"role": "query", "content": "A fox?"}, {"role": "document", "content": "Foxes jump."}]
    rendered = make_environment().from_string(template).render(messages=messages)
    assert rendered == "**Document**:\nFoxes jump.\n**Query**:\nA fox?"
    given = TokenizerOptions(chat_template="{{ messages }}")
    assert choose_templates(files, given)["default"] == "{{ messages }}"
