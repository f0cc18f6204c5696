"""The peer's loop generates the same tokens as Transformers; compiling the loop would take too long for a test."""

from __future__ import annotations

import pytest
import torch

from benchmarks import compiled_loop


@pytest.mark.slow
def test_the_loop_is_greedy_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    taken: list[torch.Tensor] = []

    def not_compiled(function: compiled_loop.Step, **options: object) -> compiled_loop.Step:
        def step(model: object, token: torch.Tensor, cache: object) -> torch.Tensor:
            taken.append(token)
            return function(model, token, cache)

        return step

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=256, num_key_value_heads=2, head_dim=16, **sizes)).eval()
    monkeypatch.setattr(torch, "compile", not_compiled)
    prompt = torch.randint(256, (2, 20))
    monkeypatch.setattr(torch, "randint", lambda *_, **__: prompt)
    with torch.no_grad():
        assert compiled_loop._loop_seconds(model, "cpu", 2, 20, 2) > 0
        greedy = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        found = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=10, **greedy)
    assert torch.equal(torch.cat(taken, 1), found[:, 20:])
