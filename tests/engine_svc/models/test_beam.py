"""Beam beyond what all families are tested for: the sums that draft heads read, and other rotations."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from engine_svc.models.decoder import Decoder
from engine_svc.models.registry import config_for
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine
from tests.support.tiny_models import load_reference


def test_sums_are_handed_on_as_large_as_elsewhere(model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, (prompt,) = model_folder("beam"), random_prompts(20)
    layers, forward, seen = [0, 2, 4], Decoder.forward, []

    def noting(self: Decoder, *inputs: Any) -> torch.Tensor:
        needs_all_rows = len(inputs) == 5
        self.tap(layers if needs_all_rows else [])
        hidden, tapped = forward(self, *inputs).tensor_split([self.config.hidden_size], dim=1)
        seen.append(tapped.clone())
        return hidden.contiguous()

    monkeypatch.setattr(Decoder, "forward", noting)
    with running_engine(folder, enforce_eager=True) as engine:
        seen.clear()
        run(engine, [prompt], replace(GREEDY, max_tokens=1, prompt_logprobs=0))
    expected = load_reference(folder)(torch.tensor([prompt]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(seen[0], torch.cat([expected[layer][0] for layer in layers], 1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rotations", [{"full_attention": {"rope_type": "default"}}, {"sliding_attention": None}])
def test_other_layers_that_rotate_are_refused(model_folder: ModelFolder, rotations: dict[str, Any]) -> None:
    config = json.loads((model_folder("beam") / "config.json").read_text())
    with pytest.raises(StartupError, match=r"rope_parameters is .*null for full_attention"):
        config_for(config | {"rope_parameters": config["rope_parameters"] | rotations})
