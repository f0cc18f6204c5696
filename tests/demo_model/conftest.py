"""What takes seconds to make, made once."""

from __future__ import annotations

import pytest
import transformers

from demo_model import tokenizer as trained
from demo_model.build import TOKENIZER_SEED


@pytest.fixture(scope="session")
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Trained on a part of the texts, which have enough words for a whole vocabulary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained, "_TEXTS", 5_000)
        return trained.train_tokenizer(TOKENIZER_SEED)
