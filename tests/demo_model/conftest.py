"""What takes seconds to make, made once."""

from __future__ import annotations

import pytest
import transformers

from demo_model.build import TOKENIZER_SEED
from demo_model.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    return train_tokenizer(TOKENIZER_SEED)
