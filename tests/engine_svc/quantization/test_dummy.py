"""Random weights in quantized formats, as used by benchmarks of model shapes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.quantization.checks import load

SETTINGS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32},
    "gptq": {"quant_method": "gptq", "bits": 3, "group_size": 32},
    "gptq act-order": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "bitsandbytes 8 bits": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "torchao": {"quant_method": "torchao", "quant_type": {"_type": "Int8WeightOnlyConfig"}},
    "torchao float8": {"quant_method": "torchao", "quant_type": {"_type": "Float8WeightOnlyConfig"}},
    "hqq": {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 32}}},
    "auto-round": {"quant_method": "auto-round", "bits": 2, "group_size": 32},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_random_codes(model_folder: ModelFolder, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(model_folder("qwen3-moe"), tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": SETTINGS[name]}
    (folder / "config.json").write_text(json.dumps(config))
    load(folder, load_format="dummy")
