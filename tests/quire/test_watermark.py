"""Watermarks of text: the noise, what finds it again, and the command that does."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from click.testing import CliRunner

from engine_svc.fingerprint import _sealed
from quire.cli import cli
from quire.options.base import to_arguments
from quire.options.watermark import WatermarkConfig, WatermarkOptions
from quire.watermark import Words, detect, gamma_tail, noise_words, uniform
from tests.support.engine_options import engine_options

KEY = 0x1234567890ABCDEF


def test_noise_is_that_of_vllms_detectors() -> None:
    """The published vectors of its function, here of numbers and of arrays."""
    contexts, token_ids, expected = [(1, 2, 3, 4), (4, 5, 6, 7)], (7, 8), [[1661833, 10571167], [9742331, 13375724]]
    found = [[noise_words(42, each, token >> 2)[token & 3] >> 8 for token in token_ids] for each in contexts]
    assert found == expected
    columns = torch.tensor(contexts)[:, :, None].unbind(1)
    words: Words = noise_words(42, columns, torch.arange(3)[None])
    assert (torch.stack(words, -1).flatten(1)[:, token_ids] >> 8).tolist() == expected


def test_numbers_are_between_0_and_1() -> None:
    ends = uniform(torch.tensor([0, 2**24 - 1]).double())
    assert 0 < ends[0] < ends[1] < 1


@pytest.mark.parametrize("shape", [0.3, 1, 7.5, 70, 2000])
def test_tails_are_those_of_the_gamma_distribution(shape: float) -> None:
    for value in (0.01, shape / 2, shape, shape + 0.9, shape + 1.1, shape * 1.2, shape * 2):
        expected = float(torch.special.gammaincc(*torch.tensor([shape, value], dtype=torch.float64)))
        assert gamma_tail(shape, value) == pytest.approx(expected, rel=1e-8, abs=1e-300)
    assert gamma_tail(shape, 0.0) == 1


def marked(config: WatermarkConfig, count: int, size: int = 50) -> list[int]:
    """Tokens of a uniform distribution, sampled with the first key's noise."""
    key, found = next(iter(config.keys())), [-1] * config.context_width
    for _ in range(count):
        context = found[-config.context_width :]
        found.append(max(range(size), key=lambda token: noise_words(key, context, token >> 2)[token & 3] >> 8))
    return found[config.context_width :]


@pytest.mark.parametrize("algorithm", ["gumbel", "dual_key_gumbel"])
def test_marked_text_is_found_and_other_is_not(algorithm: str) -> None:
    config = WatermarkConfig(KEY, algorithm, context_width=6)
    text = marked(config, 40)
    assert detect(text, config, 0.01).p_value < 1e-9
    assert detect(text, WatermarkConfig(KEY + 1, algorithm, context_width=6), 1e-4).p_value > 1e-4
    chance = random.Random(1)
    values = [detect([chance.randrange(50) for _ in range(20)], config, 0.01).p_value for _ in range(150)]
    for limit in (0.1, 0.5):  # as often as the value says: the standard deviation is at most 0.041
        assert sum(value <= limit for value in values) / 150 == pytest.approx(limit, abs=0.13)


def test_a_context_counts_once() -> None:
    config = WatermarkConfig(42, context_width=1)
    assert detect([1, 1, 1, 1, 1], config, 0.01).num_scored_tokens == 2
    assert detect([1, 2, 1, 3], config, 0.01).num_scored_tokens == 3
    assert detect([], config, 0.01).p_value == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"key": "d4c3b2a1"}, "key must be a whole number"), ({"key": 2**64}, "key must be"),
        ({"key": True}, "key must be"), ({"algorithm": "gumbel"}, "key must be"),
        ({"key": 31337, "algorithm": "sbw"}, "algorithm is 'sbw'; it must be gumbel or dual_key_gumbel"),
        ({"key": 31337, "alpha": 2}, "alpha"), ({"key": 31337, "context_width": 0}, "context_width"),
        ({"key": 31337, "secret": 1}, "secret is not known"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_without_the_key(settings: dict[str, Any], message: str) -> None:
    found = CliRunner().invoke(cli, ["detect-watermark", "model", "--watermark-config", json.dumps(settings)])
    assert found.exit_code == 2
    assert message in " ".join(found.output.split())
    assert str(settings.get("key", "key=")) not in found.output or settings.get("key") is True


@pytest.mark.parametrize("text", ['{"key": 31337', "31337"])
def test_what_is_no_object_is_not_shown(text: str) -> None:
    found = CliRunner().invoke(cli, ["detect-watermark", "model", "--watermark-config", text])
    assert (found.exit_code, "which is secret, is not" in found.output, "31337" in found.output) == (2, True, False)


def test_the_key_stays_secret() -> None:
    options = engine_options(watermark_config={"key": KEY})
    arguments, environment = to_arguments(options)
    assert str(KEY) not in " ".join(arguments)
    assert json.loads(environment["QUIRE_WATERMARK_CONFIG"]) == {"key": KEY}
    shown = [_sealed({"key": key}) for key in (KEY, KEY, KEY + 1)]
    assert shown[0] == shown[1] != shown[2]


def test_the_command_reads_text_and_tokens(tmp_path: Path) -> None:
    config = WatermarkOptions(watermark_config={"key": KEY}).watermark()
    assert config is not None
    (tmp_path / "tokens.json").write_text(json.dumps(marked(config, 40)))
    arguments = ["detect-watermark", "--watermark-config.key", str(KEY), "--input-file", str(tmp_path / "tokens.json")]
    found = CliRunner().invoke(cli, [*arguments, "--token-ids"])
    assert found.exit_code == 0, found.output
    answer = msgspec.json.decode(found.output)
    assert (answer["num_tokens"], answer["is_watermarked"]) == (40, True)
    assert answer["p_value"] < 1e-6
    missing = CliRunner().invoke(cli, ["detect-watermark", "model", "--input-file", str(tmp_path / "no")])
    assert (missing.exit_code, "--watermark-config is missing" in missing.output) == (1, True)
