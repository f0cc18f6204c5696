"""Helpers for tests of quantized checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from engine_svc.executor.base import create_executor
from quire.options.model import ModelOptions
from tests.support.engine_options import engine_options
from tests.support.quantized import Quantized
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine, tokens
from tests.support.tiny_models import check_greedy

PROMPTS = random_prompts(1, 17, 40)
TOKENS = 12


def check(model: Quantized, **options: Any) -> None:
    """Fails unless answers from the quantized checkpoint equal Transformers' with the dequantized weights."""
    with running_engine(model.packed, **options) as engine:
        found = tokens(run(engine, PROMPTS, replace(GREEDY, max_tokens=TOKENS)))
    check_greedy(model.plain, PROMPTS, found, TOKENS)


def load(folder: Path, **options: Any) -> None:
    """Loads a model into an executor and closes it."""
    chosen = engine_options(**options)
    executor = create_executor(chosen.parallel)
    try:
        executor.load(ModelOptions(model=str(folder)), chosen)
    finally:
        executor.close()
