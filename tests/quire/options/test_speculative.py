"""The configuration of speculative decoding, in every form that it can be given in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from quire.options.base import to_arguments
from quire.options.command import OptionsCommand
from quire.options.speculative import METHOD_ALIASES, METHODS, REFUSED_METHODS, SpeculativeConfig, SpeculativeOptions


def run(*arguments: str, env: Mapping[str, str] | None = None) -> tuple[Result, SpeculativeOptions | None]:
    kept: dict[str, Any] = {}
    command = OptionsCommand("engine", "Help.", {"options": SpeculativeOptions}, lambda **values: kept.update(values))
    return CliRunner().invoke(command, arguments, env=env), kept.get("options")


def chosen(*arguments: str, env: Mapping[str, str] | None = None) -> SpeculativeConfig | None:
    result, options = run(*arguments, env=env)
    assert result.exit_code == 0, result.output
    assert options is not None
    return options.chosen()


def refusal(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    result, _ = run(*arguments, env=env)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


def test_nothing_is_guessed_unless_it_is_asked_for() -> None:
    assert chosen() is None


def test_every_way_to_say_it(tmp_path: Path) -> None:
    """JSON, key by key, with underscores, as an environment variable and in a file."""
    config = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
    text = json.dumps(config)
    file = tmp_path / "config.yaml"
    file.write_text(f"speculative-config: {text}\n")
    keys = [word for key, value in config.items() for word in (f"--speculative-config.{key}", str(value))]
    ways = [
        chosen("--speculative-config", text),
        chosen(f"--speculative_config={text}"),
        chosen(*keys),
        chosen(*(f"--speculative_config.{key}={value}" for key, value in config.items())),
        chosen("--speculative-config.method=ngram", "--speculative-config", text),
        chosen(env={"QUIRE_SPECULATIVE_CONFIG": text}),
        chosen("--config", str(file)),
    ]
    assert ways == [SpeculativeConfig(**config)] * len(ways)


def test_a_child_process_gets_the_same() -> None:
    options = SpeculativeOptions({"method": "suffix", "posterior_threshold": 0.2}, 3)
    arguments, _ = to_arguments(options)
    assert run(*arguments)[1] == options


@pytest.mark.parametrize(
    ("config", "method"),
    [
        *(({"method": name, "model": "m"}, METHOD_ALIASES[name]) for name in METHOD_ALIASES if name.endswith("_mtp")),
        ({"method": "ngram_gpu"}, "ngram"),
        ({"model": "[ngram]"}, "ngram"),
        ({"model": "meta-llama/Llama-2-7b"}, "draft_model"),
        ({"model": "yuhuili/EAGLE-LLaMA3-Instruct-8B"}, "eagle"),
        ({"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}, "eagle3"),
        ({"model": "/eagle/qwen"}, "draft_model"),
        ({"method": "mtp"}, "mtp"),
    ],
)
def test_the_method_by_its_names_or_the_models(config: dict[str, Any], method: str) -> None:
    found = SpeculativeOptions(config).chosen()
    assert found is not None
    assert found.method == method
    assert method in METHODS
    assert found.most_tokens >= 1


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"method": "ngrm"}, "'ngrm' does not exist. Did you mean ngram? It must be one of ngram, suffix"),
        ({"method": "step3p5_mpt"}, "Did you mean step3p5_mtp?"),
        ({"method": "ngram", "num_speculative_token": 3}, "Did you mean num_speculative_tokens? Known keys: method"),
        ({"num_speculative_tokens": 3}, "method is missing: set it to one of ngram"),
        ({"method": "eagle3"}, "eagle3 needs model"),
        ({"method": "suffix", "model": "m"}, "suffix does not use a model"),
        (
            {"method": "ngram", "num_speculative_tokens": 0},
            "tokens: Expected `int` >= 1, and num_speculative_tokens is 0.",
        ),
        ({"method": "ngram", "num_speculative_tokens": 65}, "<= 64"),
        (
            {"method": "ngram", "num_speculative_tokens": "3"},
            'num_speculative_tokens: Expected `int | null`, got `str`, and num_speculative_tokens is "3".',
        ),
        ({"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 3}, "is greater than prompt_lookup_max"),
        ({"method": "ngram", "acceptance_method": "typical_acceptance"}, "Did you mean typical_acceptance_sampler?"),
        *(
            ({"method": method}, f"'{method}' is not supported. {REFUSED_METHODS[method]}")
            for method in REFUSED_METHODS
        ),
    ],
)
def test_what_is_wrong_is_said_at_the_start(config: dict[str, Any], words: str) -> None:
    assert words in refusal("--speculative-config", json.dumps(config))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--speculative-config",), "--speculative-config needs a value"),
        (("--speculative-config.method",), "--speculative-config.method needs a value"),
        (("--speculative-config.model.", "3"), "ends with a dot"),
        (("--speculative-config", "[1]"), "not a JSON object"),
        (
            ("--speculative-config", "ngram"),
            "Write '{\"method\": …}', or set each key separately: --speculative-config.method",
        ),
        (("--speculative-config", "[1]", "--speculative-config.method", "ngram"), "not a JSON object"),
        (("--speculative-config.model", "m", "--speculative-config.model.x", "n"), "model is not an object"),
        (("--num-lookahead-slots", "-1"), "at least 0"),
    ],
)
def test_keys_that_cannot_be_put_together(arguments: Sequence[str], words: str) -> None:
    assert words in refusal(*arguments)


def test_lengths_of_lookup_and_the_scale_of_typical_acceptance() -> None:
    def lengths(**keys: int) -> tuple[int, int]:
        return SpeculativeConfig("ngram", **keys).lookup_lengths  # type: ignore[arg-type]  # keys by name

    assert lengths() == (2, 4)
    assert lengths(prompt_lookup_max=6) == (6, 6)
    assert lengths(prompt_lookup_min=2) == (2, 2)
    assert lengths(prompt_lookup_min=1, prompt_lookup_max=3) == (1, 3)
    typical = SpeculativeConfig("ngram", acceptance_method="typical_acceptance_sampler")
    assert typical.typical_acceptance == pytest.approx((0.09, 0.3))
    assert msgspec.structs.replace(typical, posterior_alpha=0.5).typical_acceptance == (0.09, 0.5)
    assert SpeculativeConfig("ngram").typical_acceptance is None


def test_the_configuration_is_the_same_when_it_is_read_again() -> None:
    config = SpeculativeOptions({"model": "[ngram]"}).chosen()
    assert msgspec.convert(msgspec.to_builtins(config), SpeculativeConfig) == config


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (
            ("--speculative-model", "meta-llama/Llama-2-7b", "--num-speculative-tokens", "5"),
            {"model": "meta-llama/Llama-2-7b", "num_speculative_tokens": 5},
        ),
        (
            ("--speculative_model=[ngram]", "--ngram_prompt_lookup_max=4", "--ngram-prompt-lookup-min", "2"),
            {"model": "[ngram]", "prompt_lookup_max": 4, "prompt_lookup_min": 2},
        ),
        (
            ("--speculative-config", '{"method": "ngram"}', "--ngram-prompt-lookup-max", "4"),
            {"method": "ngram", "prompt_lookup_max": 4},
        ),
        (("--speculative-model", "m", "-spec-draft-tp", "2"), {"model": "m", "draft_tensor_parallel_size": 2}),
        (
            ("--speculative-model=m", "--speculative-draft-tensor-parallel-size", "1"),
            {"model": "m", "draft_tensor_parallel_size": 1},
        ),
        (
            ("--speculative-model=m", "--speculative-model-quantization", "awq"), {"model": "m", "quantization": "awq"},
        ),
        (("--speculative-model=m", "--speculative-max-model-len", "2048"), {"model": "m", "max_model_len": 2048}),
        (
            ("--speculative-model=m", "--speculative-disable-by-batch-size", "16"),
            {"model": "m", "disable_by_batch_size": 16},
        ),
        (
            ("--speculative-model=m", "--spec-decoding-acceptance-method", "typical_acceptance_sampler",
             "--typical-acceptance-sampler-posterior-threshold", "0.1",
             "--typical-acceptance-sampler-posterior-alpha", "0.4"),
            {"model": "m", "acceptance_method": "typical_acceptance_sampler", "posterior_threshold": 0.1,
             "posterior_alpha": 0.4},
        ),
        (
            ("--speculative-model=m", "--disable-logprobs-during-spec-decoding"),
            {"model": "m", "disable_logprobs": True},
        ),
        (
            ("--speculative-model=m", "--disable-logprobs-during-spec-decoding", "False"),
            {"model": "m", "disable_logprobs": False},
        ),
    ],
)  # fmt: skip
def test_superseded_flags_act_as_keys_of_the_configuration(arguments: Sequence[str], config: dict[str, Any]) -> None:
    result, options = run(*arguments)
    assert result.exit_code == 0, result.output
    assert options is not None
    assert options.speculative_config == config
    for word in arguments:
        flag = word.partition("=")[0].replace("_", "-")
        if flag.startswith("-") and flag != "--speculative-config":
            assert f"warning: {flag} acts as --speculative-config." in result.output.replace("_", "-")


def test_superseded_keys_of_a_file_act_too(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text('speculative-model: "[ngram]"\nnum-speculative-tokens: 3\nspeculative-disable-mqa-scorer: true\n')
    result, options = run("--config", str(file))
    assert options is not None
    assert options.speculative_config == {"model": "[ngram]", "num_speculative_tokens": 3}
    assert "speculative-disable-mqa-scorer has no effect" in result.output


def test_superseded_variables_and_what_has_no_successor() -> None:
    output = refusal(env={"QUIRE_NUM_SPECULATIVE_TOKENS": "3"})
    assert "Use --speculative-config.num_speculative_tokens instead of QUIRE_NUM_SPECULATIVE_TOKENS" in output
    result, options = run("--speculative-disable-mqa-scorer")
    assert options == SpeculativeOptions()
    assert "always verified in one pass" in result.output
