"""A small tekken.json: the first words of Mistral's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mistral_common

NUM_SPECIAL = 30
NUM_WORDS = 2000


def write_tekken(folder: Path, **changes: Any) -> Path:
    """Writes the file, with changes to its top level."""
    packaged = json.loads((Path(mistral_common.__file__).parent / "data" / "tekken_240718.json").read_bytes())
    config = packaged["config"] | {
        "default_vocab_size": NUM_SPECIAL + NUM_WORDS, "default_num_special_tokens": NUM_SPECIAL,
    }  # fmt: skip
    path = folder / "tekken.json"
    path.write_text(json.dumps({"config": config, "vocab": packaged["vocab"][: NUM_WORDS + 100]} | changes))
    return path
