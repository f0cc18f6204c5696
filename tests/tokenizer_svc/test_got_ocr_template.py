"""GOT-OCR 2, which comes without a chat template, renders conversations as its processor does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.options.tokenizer import TokenizerOptions
from quire.tokenizer.files import read_tokenizer_files
from tests.support.vision_models import make_vision_model, random_image, reference_processor
from tokenizer_svc.chat_template import make_environment
from tokenizer_svc.got_ocr_template import got_ocr_templates
from tokenizer_svc.main import choose_templates

IMAGE = random_image(60, 40, 1)
PART = {"type": "image"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = make_vision_model(tmp_path_factory.mktemp("got"), "got_ocr2")
    (found / "chat_template.jinja").unlink()
    return found


def rendered(folder: Path, *messages: dict[str, Any]) -> str:
    template = choose_templates(read_tokenizer_files(folder), TokenizerOptions())["default"]
    return make_environment().from_string(template).render(messages=messages, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        (None, {}), (" OCR: ", {}), (" OCR with format: ", {"format": True}), ("[red]  OCR: ", {"color": "red"}),
        (" OCR upon the patch reference: ", {"crop_to_patches": True}),
    ],
)  # fmt: skip
def test_what_the_processor_asks(folder: Path, asked: str | None, options: dict[str, Any]) -> None:
    content = [PART] if asked is None else [PART, {"type": "text", "text": asked}]
    found = rendered(folder, {"role": "user", "content": content})
    processor = reference_processor(folder)
    expected = processor(images=[IMAGE], add_special_tokens=False, **options)["input_ids"][0]
    count = expected.count(processor.image_token_id)
    assert found.count("<imgpad>") == 1
    assert processor.tokenizer.encode(found.replace("<imgpad>", "<imgpad>" * count)) == expected


def test_other_conversations(folder: Path) -> None:
    user, system = {"role": "user", "content": "Hi"}, {"role": "system", "content": "Be short."}
    answer = {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]}
    assert rendered(folder, system, user, answer) == (
        "<|im_start|>system\nBe short.<|im_end|><|im_start|>user\nHi<|im_end|><|im_start|>assistant\nHello<|im_end|>"
        "<|im_start|>assistant\n"
    )


def test_other_models_and_files_have_none(tmp_path: Path) -> None:
    assert got_ocr_templates(None) == got_ocr_templates(tmp_path) == {}
    for content in (b"{", b"[]", b"\xff", json.dumps({"processor_class": "LlavaProcessor"}).encode()):
        (tmp_path / "processor_config.json").write_bytes(content)
        assert got_ocr_templates(tmp_path) == {}
    (tmp_path / "preprocessor_config.json").write_text('{"processor_class": "GotOcr2Processor"}')
    assert [*got_ocr_templates(tmp_path)] == ["default"]
