"""A draft model must give token ids the same meaning as the target."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path

import pytest

from engine_svc.speculative.vocabulary import check_vocabulary
from quire.errors import StartupError
from quire.options.model import ModelOptions
from quire.options.speculative import SpeculativeConfig

BOX = Path(str(resources.files("demo_model")))


def check(model: object, draft: object, vocab_size: int = 4096) -> None:
    check_vocabulary(SpeculativeConfig(model=str(draft)), ModelOptions(model=str(model)), vocab_size)


def test_the_sibling_in_the_box_fits() -> None:
    check("quire-demo", "quire-demo-draft")


def test_a_token_that_is_another_is_told(tmp_path: Path) -> None:
    shutil.copytree(BOX / "quire-demo-draft", tmp_path, dirs_exist_ok=True)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = definition["model"]["vocab"]
    one, other = [token for token, token_id in vocabulary.items() if token_id in (300, 301)]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(StartupError, match=r"its token 300 is .* Use a draft of the model's own family"):
        check("quire-demo", tmp_path)


def test_without_a_tokenizer_sizes_count(tmp_path: Path) -> None:
    shutil.copytree(BOX / "quire-demo-draft", tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer.json").unlink()
    check("quire-demo", tmp_path)
    with pytest.raises(StartupError, match="vocabulary of 4096 tokens, but the model has one of 5000"):
        check("quire-demo", tmp_path, 5000)


def test_a_draft_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"--speculative-config: the draft .*nowhere: No model at"):
        check("quire-demo", tmp_path / "nowhere")
