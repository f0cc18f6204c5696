"""Options of low-rank adapters: how --lora-modules is written, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from quire.bounds import MAX_ADAPTERS
from quire.errors import StartupError
from quire.options.base import to_arguments
from quire.options.command import OptionsCommand
from quire.options.lora import LoraModule, LoraOptions
from quire.options.model import ModelOptions

ONE = {"name": "c", "path": "/c", "base_model_name": "base"}


def parse(*arguments: str, env: dict[str, str] | None = None) -> tuple[LoraOptions, str]:
    """The parsed options, and the model's name."""
    found: list[tuple[LoraOptions, str]] = []
    command = OptionsCommand(
        "test", "", {"lora": LoraOptions, "model": ModelOptions}, lambda lora, model: found.append((lora, model.model))
    )
    result = CliRunner().invoke(command, list(arguments), env=env)
    assert result.exit_code == 0, result.output
    return found[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--lora-modules", "a=/x", "b=/y=z", json.dumps(ONE), "model"),
        ("--lora-modules=a=/x", "b=/y=z", json.dumps(ONE), "model"),
        ("model", "--lora-modules", "a=/x", "--lora-modules", "b=/y=z", "--lora-modules", json.dumps(ONE)),
        ("--lora-modules", "a=/x", "b=/y=z", json.dumps([ONE]), "model"),
        ("--lora-modules", json.dumps([{"name": "a", "path": "/x"}, {"name": "b", "path": "/y=z"}, ONE]), "model"),
        (
            "--lora-modules",
            "a=/x",
            json.dumps({"name": "b", "path": "/y=z", "base_model_name": None}),
            json.dumps(ONE),
            "model",
        ),
        ("--lora-modules", json.dumps(["a=/x", "b=/y=z", json.dumps(ONE)]), "--", "model"),
    ],
)
def test_modules_are_written_in_many_ways(arguments: tuple[str, ...]) -> None:
    lora, model = parse(*arguments)
    assert lora.modules() == [LoraModule("a", "/x"), LoraModule("b", "/y=z"), LoraModule("c", "/c", "base")]
    assert model == "model"


def test_modules_come_from_the_environment_and_from_a_file(tmp_path: Path) -> None:
    wanted = [LoraModule("a", "/x"), LoraModule("c", "/c", "base")]
    lora, _ = parse(env={"QUIRE_LORA_MODULES": f"a=/x {json.dumps(ONE, separators=(',', ':'))}"})
    assert lora.modules() == wanted
    config = tmp_path / "config.yaml"
    config.write_text(f"enable-lora: true\nlora-modules:\n- a=/x\n- {json.dumps(ONE)}\n")
    lora, _ = parse("--config", str(config))
    assert lora.enable_lora
    assert lora.modules() == wanted


def test_defaults_of_kinds_of_media_are_served_under_their_names() -> None:
    lora, _ = parse("--enable-lora", "--default-mm-loras", '{"audio": "/y", "image": "/x"}', "--lora-modules", "a=/x")
    lora.check()
    assert lora.modules() == [LoraModule("a", "/x"), LoraModule("audio", "/y"), LoraModule("image", "/x")]
    with pytest.raises(StartupError, match="two adapters named 'audio'"):
        LoraOptions(default_mm_loras={"audio": "/y"}, lora_modules=("audio=/x",)).modules()
    with pytest.raises(StartupError, match="--default-mm-loras has no effect without --enable-lora"):
        LoraOptions(default_mm_loras={"audio": "/y"}).check()


def test_another_process_gets_the_same_options() -> None:
    media = json.dumps({"audio": "/y"})
    lora, _ = parse(
        "--enable-lora", "--max-loras", "4", "--default-mm-loras", media, "--lora-modules", "a=/x", json.dumps([ONE])
    )
    arguments, environment = to_arguments(lora)
    assert (parse(*arguments)[0], environment) == (lora, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "has no path"),
        ("a=", "has no path"),
        ("=/x", "1 to 256 of the characters"),
        ("a,b=/x", "1 to 256 of the characters"),
        ("{", "is not JSON"),
        ("[1]", "an adapter must be an object"),
        ('{"name": "a"}', "missing required field `path`"),
        ('{"name": "a", "pth": "/x"}', "Did you mean path?"),
        ('{"name": "a", "path": 1}', "Expected `str`"),
    ],
)
def test_a_module_that_is_none_is_explained(text: str, words: str) -> None:
    with pytest.raises(StartupError, match="--lora-modules") as raised:
        LoraOptions(lora_modules=(text,)).modules()
    assert words in str(raised.value)


def test_names_are_used_once_and_not_without_end() -> None:
    with pytest.raises(StartupError, match="two adapters named 'a'"):
        LoraOptions(lora_modules=("a=/x", "a=/y")).modules()
    with pytest.raises(StartupError, match=f"at most {MAX_ADAPTERS}"):
        LoraOptions(lora_modules=tuple(f"a{index}=/x" for index in range(MAX_ADAPTERS + 1))).modules()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (LoraOptions(lora_modules=("a=/x",)), "--lora-modules has no effect without --enable-lora"),
        (LoraOptions(max_loras=2), "--max-loras has no effect without --enable-lora"),
        (LoraOptions(allow_runtime_lora_updating=True), "--allow-runtime-lora-updating has no effect"),
        (LoraOptions(enable_lora=True, max_loras=4, max_cpu_loras=3), "--max-cpu-loras 3 is less than --max-loras 4"),
        (LoraOptions(enable_lora=True, allow_runtime_lora_updating=True), "needs --allowed-lora-root"),
        (LoraOptions(enable_lora=True, lora_modules=("a",)), "has no path"),
    ],
)
def test_what_would_have_no_effect_is_refused(options: LoraOptions, words: str) -> None:
    with pytest.raises(StartupError) as raised:
        options.check()
    assert words in str(raised.value)


def test_host_memory_keeps_what_the_device_has() -> None:
    LoraOptions(enable_lora=True, max_loras=4, max_cpu_loras=4).check()
    assert LoraOptions(enable_lora=True, max_loras=3).host_places == 3
    assert LoraOptions(enable_lora=True, max_loras=3, max_cpu_loras=5).host_places == 5


def test_updating_is_allowed_by_vllms_variable() -> None:
    assert parse(env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"})[0].allow_runtime_lora_updating
    assert not parse(env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0"})[0].allow_runtime_lora_updating


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--enable-lora-bias", "biases are not a low-rank part"),
        ("--lora-extra-vocab-size", "the vocabulary of its base"),
        ("--long-lora-scaling-factors", "--rope-scaling"),
        ("--qlora-adapter-name-or-path", "--lora-modules NAME=PATH"),
    ],
)
def test_what_is_gone_names_what_to_do(flag: str, words: str) -> None:
    command = OptionsCommand("test", "", {"lora": LoraOptions}, lambda lora: None)
    output = " ".join(CliRunner().invoke(command, [flag, "4"]).output.split())
    assert words in output
