"""Text models that vision-language models are published with, beside those of `FAMILIES`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from engine_svc.models.registry import text_part
from quire.errors import StartupError
from tests.support.run_engine import run_requests, running_engine, tokens
from tests.support.vision_models import FAMILIES, make_vision_model, random_image
from tests.support.vision_models.conversations import answer, ask
from tests.support.vision_models.family import EXPERTS, TEXT

# By vision-language model and type of text model: its fields.
TEXT_MODELS: dict[tuple[str, str], dict[str, Any]] = {
    ("internvl", "gpt_oss"): EXPERTS | {"num_local_experts": 4, "sliding_window": 16},
    ("internvl", "llama"): {},
    ("internvl", "qwen3"): {},
    ("internvl", "qwen3_moe"): EXPERTS,
    ("llava", "gemma"): {},
    ("llava", "mixtral"): {"num_local_experts": 4, "num_experts_per_tok": 2},
    ("llava", "phi3"): {"pad_token_id": 0},
    ("llava_next", "falcon"): {
        "ffn_hidden_size": 96, "num_kv_heads": 2, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1,
    },
    ("llava_next", "gemma2"): {"query_pre_attn_scalar": 16},
}  # fmt: skip


@pytest.mark.parametrize(("family", "text"), TEXT_MODELS)
def test_text_models(family: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = TEXT | {"model_type": text} | TEXT_MODELS[family, text]
    if text == "falcon":
        del fields["head_dim"]
    monkeypatch.setitem(FAMILIES, "mixed", dataclasses.replace(FAMILIES[family], text=fields))
    folder = make_vision_model(tmp_path, "mixed")
    parts = ("Look at this: ", random_image(60, 40, 1), "What do you see?")
    with running_engine(folder, max_num_batched_tokens=13, max_num_seqs=4) as engine:
        assert tokens(run_requests(engine, [ask(folder, *parts)])) == [answer(folder, *parts)]


def test_gemma3_within_another_model_is_refused() -> None:
    config = {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
        "text_config": {"model_type": "gemma3_text"}, "vision_config": {"model_type": "siglip_vision_model"},
    }  # fmt: skip
    with pytest.raises(StartupError, match=r"its text model is Gemma 3's"):
        text_part(config)
