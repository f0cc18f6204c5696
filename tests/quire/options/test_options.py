"""Options: from a dataclass to flags, environment, config file and the arguments of a child process."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.cli import all_commands
from quire.options.base import build, fields_of, option, to_arguments
from quire.options.command import OptionsCommand
from quire.options.engine import EngineOptions
from quire.options.generation import GenerationOptions
from quire.options.kernels import KernelOptions
from quire.options.log import LogOptions
from quire.options.model import ModelOptions
from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from tests.support.engine_options import engine_options


@dataclass(frozen=True)
class Sample:
    """Options of every kind."""

    model: str = option("", "Positional too.", positional=True)
    count: int = option(3, "A number.", minimum=-5, maximum=10**12, aliases=("-c",))
    limit: int | None = option(None, "A number or none.", minimum=1)
    share: float = option(0.5, "A share.", minimum=0.0, maximum=1.0)
    eager: bool = option(False, "Off unless asked for.")
    caching: bool = option(True, "On unless asked not to.")
    mode: str = option("fast", "One of some.", choices=("fast", "slow"), others="Nothing between.")
    names: tuple[str, ...] = option((), "Several.")
    ports: tuple[int, ...] = option((), "Several numbers.")
    overrides: dict[str, Any] = option({}, "An object.")
    key: str | None = option(None, "Hidden.", secret=True)
    keys: tuple[str, ...] = option((), "Several, hidden.", secret=True)


@dataclass(frozen=True)
class Other:
    """A second group."""

    count: int = option(3, "A number.", minimum=-5, maximum=10**12, aliases=("-c",))  # like Sample's
    speed: int = option(1, "Only here.")


class Parsed:
    """Runs the command and keeps what it parsed."""

    def __init__(self, groups: Mapping[str, type], **defaults: Any) -> None:
        self.values: dict[str, Any] = {}
        self.command = OptionsCommand("sample", "Help.", groups, self.keep, defaults)

    def keep(self, **values: Any) -> None:
        self.values = values

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> Result:
        return CliRunner().invoke(self.command, arguments, env=env)


def parse(*arguments: str, env: Mapping[str, str] | None = None, **defaults: Any) -> Sample:
    parsed = Parsed({"sample": Sample}, **defaults)
    result = parsed.run(*arguments, env=env)
    assert result.exit_code == 0, result.output
    sample = parsed.values["sample"]
    assert isinstance(sample, Sample)
    return sample


def refuse(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """The message about invalid arguments."""
    result = Parsed({"sample": Sample}).run(*arguments, env=env)
    assert result.exit_code == 2, result.output
    return result.output


def test_defaults() -> None:
    assert parse() == Sample()


def test_flags_of_every_kind() -> None:
    assert parse(
        "folder", "--count", "7", "--limit=32K", "--share", "0.25", "--eager", "--no-caching", "--mode", "slow",
        "--names", "a", "--names", "b", "--ports", "1", "--ports", "2k", "--overrides", '{"a": {"b": 1}}', "--key", "k",
    ) == Sample(
        model="folder", count=7, limit=32768, share=0.25, eager=True, caching=False, mode="slow", names=("a", "b"),
        ports=(1, 2000), overrides={"a": {"b": 1}}, key="k",
    )  # fmt: skip


def test_a_key_of_an_object_is_a_flag_of_its_own() -> None:
    sample = parse("m", "--overrides.a.b", "1", "--overrides", '{"c": [2]}', "--overrides.d=x y", "--names", "a_b.c")
    assert sample == Sample(model="m", overrides={"a": {"b": 1}, "c": [2], "d": "x y"}, names=("a_b.c",))
    assert parse("--names=x_y", "--no-caching").names == ("x_y",)


def test_aliases_and_the_positional_argument() -> None:
    assert parse("-c", "4").count == 4
    assert parse("--model", "m").model == parse("m").model == parse("m", "--model", "m").model == "m"
    assert "Name only one" in refuse("m", "--model", "other")


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("count: 5\nmode: slow\nnames: [x, y]\ncaching: false\n")
    file = ("--config", str(config))
    assert parse(*file) == Sample(count=5, mode="slow", names=("x", "y"), caching=False)
    environment = {"QUIRE_COUNT": "6", "QUIRE_NAMES": "e f"}
    assert parse(*file, env=environment) == Sample(count=6, mode="slow", names=("e", "f"), caching=False)
    flags = ("--count", "7", "--names", "g", "--caching")
    assert parse(*file, *flags, env=environment) == Sample(count=7, mode="slow", names=("g",), caching=True)


def test_a_commands_own_default_is_the_weakest(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("count: 5\n")
    assert parse(count=9).count == 9
    assert parse("--config", str(config), count=9).count == 5
    assert parse(env={"QUIRE_COUNT": "6"}, count=9).count == 6
    assert parse("--count", "7", count=9).count == 7


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_booleans_in_the_environment(text: str, value: bool) -> None:
    assert parse(env={"QUIRE_EAGER": text, "QUIRE_CACHING": text}) == Sample(eager=value, caching=value)


def test_json_and_secrets_in_the_environment() -> None:
    sample = parse(env={"QUIRE_OVERRIDES": '{"a": [1]}', "QUIRE_KEY": "s3cret", "QUIRE_KEYS": "a b"})
    assert sample == Sample(overrides={"a": [1]}, key="s3cret", keys=("a", "b"))


@pytest.mark.parametrize("given", ["flag", "environment", "file"])
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('["https://a.example", "b c"]', ("https://a.example", "b c")),
        ("[]", ()),
        ("[4, 5]", ("4", "5")),
        ("[::1]:50051", ("[::1]:50051",)),
    ],
)
def test_a_json_list_stands_for_its_items(tmp_path: Path, given: str, text: str, values: tuple[str, ...]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"names": text}))
    ways: dict[str, Any] = {
        "flag": lambda: parse("--names", text),
        "environment": lambda: parse(env={"QUIRE_NAMES": text}),
        "file": lambda: parse("--config", str(config)),
    }
    assert ways[given]().names == values


def test_json_lists_of_numbers_and_beside_repetition() -> None:
    assert parse("--ports", "[1, 2]", "--ports", "2k").ports == (1, 2, 2000)
    assert "a JSON list" in refuse("--names", '["https://a.example"')
    assert "not an integer" in refuse("--ports", '["x"]')


def test_what_kubernetes_sets_for_a_service_of_that_name_is_no_port() -> None:
    parsed = Parsed({"server": GrpcServerOptions})
    result = parsed.run(env={"QUIRE_PORT": "tcp://10.96.0.1:8000", "QUIRE_METRICS_PORT": "9"})
    assert result.exit_code == 0, result.output
    assert parsed.values["server"] == GrpcServerOptions(metrics_port=9)
    assert "QUIRE_PORT=tcp://10.96.0.1:8000 is ignored" in result.output
    assert "not an integer" in Parsed({"server": GrpcServerOptions}).run(env={"QUIRE_PORT": "http"}).output


def test_a_flag_that_needs_no_value() -> None:
    def token(*arguments: str) -> str | None:
        parsed = Parsed({"model": ModelOptions})
        result = parsed.run(*arguments, env={"HF_TOKEN": "unread"})
        assert result.exit_code == 0, result.output
        found = parsed.values["model"]
        assert isinstance(found, ModelOptions)
        assert "hf_secret" not in repr(found.hub)
        _, environment = to_arguments(found)  # for a child process, whose arguments other users can see
        assert environment.get("QUIRE_HF_TOKEN") == found.hf_token
        return found.hf_token

    assert token() is None
    assert token("m", "--hf-token", "hf_secret") == token("--hf-token=hf_secret", "m") == "hf_secret"
    assert token("m", "--hf-token") == token("--hf-token", "--revision", "main") == "login"


def test_a_variable_that_names_a_flag_that_quire_lacks_is_refused() -> None:
    output = refuse(env={"QUIRE_IO_PROCESSOR_PLUGIN": "1"})
    assert "QUIRE_IO_PROCESSOR_PLUGIN is an option of vLLM that Quire does not implement" in output
    assert parse(env={"QUIRE_IO_PROCESSOR_PLUGIN": "", "QUIRE_MODEL_DIR": "/m"}) == Sample()


def test_config_file_takes_an_object_and_a_single_value_for_a_list(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("overrides: {a: 1}\nnames: just-one\nports: 8\nlimit: 4k\n")
    assert parse("--config", str(config)) == Sample(overrides={"a": 1}, names=("just-one",), ports=(8,), limit=4000)


def test_a_key_without_a_value_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("".join(f"{field.flag[2:]}: null\n" for field in fields_of(Sample)))
    assert parse("--config", str(config)) == Sample()
    assert parse("--config", str(config), count=9).count == 9
    assert parse("--config", str(config), env={"QUIRE_COUNT": "6"}).count == 6


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("cuont:\n", ("cuont", "not an option", "count")),
        ("cuont: 5\n", ("cuont", "not an option", "count")),
        ("- a\n- b\n", ("keys and values",)),
        ("a: [\n", ("cannot be read",)),
        ("count: many\n", ("many", "not an integer")),
    ],
)
def test_a_bad_config_file_is_explained(tmp_path: Path, content: str, words: Sequence[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(content)
    output = refuse("--config", str(config))
    assert all(word in output for word in words), output


def test_a_missing_config_file_is_named() -> None:
    assert "/nowhere.yaml" in refuse("--config", "/nowhere.yaml")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--count", "x"), ("not an integer", "25.6k")),
        (("--count", "1.5"), ("whole",)),
        (("--count", "-6"), ("at least -5",)),
        (("--limit", "0"), ("at least 1",)),
        (("--share", "1.5"), ("1.5",)),
        (("--share", "nan"), ("'nan' is not a number",)),
        (("--mode", "medium"), ("fast", "slow", "Nothing between.")),
        (("--overrides", "{"), ("not JSON",)),
        (("--overrides", "[1]"), ("not a JSON object",)),
        (("--nonsense",), ("--nonsense",)),
        (("--io-processor-plugin", "x"), ("option of vLLM", "does not implement")),
        (("--trust-remote-code",), ("option of vLLM", "Quire never runs code from a repository")),
        (("--code-revision", "main"), ("option of vLLM", "Quire never runs code from a repository")),
        (("--cuont", "4"), ("No such option: --cuont", "Did you mean --count? A number.")),
    ],
)
def test_what_is_wrong_is_explained(arguments: tuple[str, ...], words: Sequence[str]) -> None:
    output = refuse(*arguments)
    assert all(word in output for word in words), output


def test_a_bad_value_in_the_environment_names_the_option() -> None:
    assert "--count" in refuse(env={"QUIRE_COUNT": "x"})


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("-5", -5), ("12", 12), ("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("2m", 2 * 10**6), ("1M", 2**20),
     ("0.5K", 512), ("1.005k", 1005), ("1G", 2**30), ("123456789012", 123456789012)],
)  # fmt: skip
def test_integers_with_suffixes(text: str, value: int) -> None:
    assert parse("--count", text).count == value


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_thousandths_are_exact(number: int) -> None:
    assert parse("--count", f"{number // 1000}.{number % 1000:03d}k").count == number


def test_help_shows_options_and_finds_words() -> None:
    parsed = Parsed({"sample": Sample})
    everything = parsed.run("--help").output
    assert "Options of every kind" in everything
    assert "--no-caching" in everything
    found = parsed.run("--help=share").output
    assert "--share" in found
    assert "--mode" not in found
    assert "No option" in parsed.run("--help=zebra").output


def test_help_hides_the_values_of_secrets() -> None:
    @dataclass(frozen=True)
    class Secretive:
        """Secrets."""

        token: str = option("hush", "A token.", secret=True)

    Secretive.__annotations__["token"] = str
    assert "hush" not in Parsed({"secretive": Secretive}).run("--help").output


def test_groups_share_an_option_of_the_same_name() -> None:
    parsed = Parsed({"sample": Sample, "other": Other})
    assert parsed.run("--count", "8", "--speed", "2").exit_code == 0
    assert parsed.values["sample"].count == parsed.values["other"].count == 8
    assert parsed.values["other"].speed == 2


@dataclass(frozen=True)
class Deeper:
    """A group nested in a group."""

    group: ClassVar[str] = "Frontend"
    depth: int = option(2, "How deep.")


@dataclass(frozen=True)
class Grouped:
    """Options and nested groups of them."""

    top: int = option(1, "Of its own.")
    other: Other = Other()
    deeper: Deeper = Deeper()


def test_a_group_within_options_is_parsed_into_its_own_dataclass() -> None:
    parsed = Parsed({"grouped": Grouped})
    chosen = Grouped(top=5, other=Other(speed=4), deeper=Deeper(7))
    arguments, environment = to_arguments(chosen)
    assert (arguments, environment) == (["--top", "5", "--speed", "4", "--depth", "7"], {})
    assert parsed.run(*arguments).exit_code == 0
    assert parsed.values["grouped"] == chosen
    assert [group.name for group in parsed.command.sections()] == ["GroupedConfig", "OtherConfig", "Frontend"]
    assert build(Grouped, {"depth": 7, "top": 5, "speed": 4}) == chosen
    with pytest.raises(TypeError, match="Grouped has no option width"):
        build(Grouped, {"width": 1})


def colliding(name: str, kind: type, **metadata: Any) -> type:
    return dataclasses.make_dataclass("Colliding", [(name, kind, option(kind(), "Another.", **metadata))])


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (colliding("count", int), "--count"),
        (colliding("counts", int, aliases=("-c",)), "-c"),
        (colliding("no_eager", bool), "--no-eager"),
        (colliding("config", str), "--config"),
        (colliding("Count", int), "QUIRE_COUNT"),
    ],
)
def test_two_options_of_one_name_are_refused(group: type, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} of CollidingConfig"):
        Parsed({"sample": Sample, "colliding": group})


def test_no_two_options_of_a_command_share_a_name() -> None:
    for _, command in all_commands():
        names = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
        variables = [
            name
            for parameter in command.params
            for name in ([parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ())
        ]
        assert all(count == 1 for count in Counter([*names, *variables]).values()), command.name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"temprature": 1}', ("temprature is not known", "Did you mean temperature?")),
        ('{"zebra": 1}', ("zebra is not known. Known keys: temperature, ", "max_new_tokens, eos_token_id.")),
        ('{"top_k": "many"}', ("float | null", 'top_k is "many"')),
    ],
)
def test_an_object_of_known_keys_is_checked(tmp_path: Path, text: str, words: Sequence[str]) -> None:
    parsed = Parsed({"generation": GenerationOptions})
    (tmp_path / "config.yaml").write_text(f"override-generation-config: {text}\n")
    for arguments in (("--override-generation-config", text), ("--config", str(tmp_path / "config.yaml"))):
        result = parsed.run(*arguments)
        assert result.exit_code == 2
        assert all(word in " ".join(result.output.split()) for word in words), result.output


def test_null_is_a_value_of_a_known_key() -> None:
    parsed = Parsed({"generation": GenerationOptions})
    assert parsed.run("--override-generation-config", '{"max_new_tokens": null, "eos_token_id": [1, 2]}').exit_code == 0
    given = parsed.values["generation"].override_generation_config
    assert given == {"max_new_tokens": None, "eos_token_id": [1, 2]}


words = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=["Cc", "Cs"]), min_size=1)
lists = st.sampled_from(["[1]", '["a"]', "[]", "[::1]:80", '["a", ', "[a b]"])  # like JSON lists, but values
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
samples = st.builds(
    Sample,
    model=st.just("") | words.filter(lambda word: not word.startswith("-")),
    count=st.integers(-5, 10**12),
    limit=st.none() | st.integers(1, 10**9),
    share=st.floats(0, 1),
    eager=st.booleans(),
    caching=st.booleans(),
    mode=st.sampled_from(["fast", "slow"]),
    names=st.lists(words | lists, max_size=3).map(tuple),
    ports=st.lists(st.integers(0, 65535), max_size=3).map(tuple),
    overrides=st.dictionaries(st.text(max_size=5), json_values, max_size=3),
    key=st.none() | words,
    keys=st.lists(words | lists, max_size=3).map(tuple),
)


@given(samples)
@settings(deadline=None, max_examples=60)
def test_a_child_process_parses_the_same_options(sample: Sample) -> None:
    arguments, environment = to_arguments(sample)
    assert parse(*arguments, env=environment) == sample


def test_secrets_stay_out_of_the_arguments() -> None:
    arguments, environment = to_arguments(Sample(key="hush", keys=("a", "b"), count=4))
    assert arguments == ["--count", "4"]
    assert environment == {"QUIRE_KEY": "hush", "QUIRE_KEYS": '["a", "b"]'}


@pytest.mark.parametrize(
    "options",
    [
        RouterOptions(workers=("a:1", "b:2"), routing_policy="random", worker_lease_seconds=2.5),
        GrpcServerOptions(port=5, insecure=True, drain_timeout_seconds=0.0),
        RpcSecurityOptions(grpc_token="hush"),
        engine_options(max_model_len=128, enable_prefix_caching=False, hf_overrides={"a": 1}, tensor_parallel_size=2),
        ModelOptions(model="m", served_model_name=("x", "y")),
        LogOptions(log_level="debug"),
    ],
)
def test_the_real_options_survive_the_way_to_a_child(options: Any) -> None:
    arguments, environment = to_arguments(options)
    parsed = Parsed({"options": type(options)})
    result = parsed.run(*arguments, env=environment)
    assert result.exit_code == 0, result.output
    assert parsed.values["options"] == options
    assert "hush" not in arguments


@pytest.mark.parametrize(
    "cls", [RouterOptions, GrpcServerOptions, RpcSecurityOptions, EngineOptions, ModelOptions, LogOptions]
)
def test_every_option_has_help_and_a_default(cls: type) -> None:
    cls()
    for field in fields_of(cls):
        assert field.metadata["help"].endswith("."), field.name
        assert field.flag == "--" + field.name.replace("_", "-")
        json.dumps(field.default)
    assert all(dataclasses.is_dataclass(cls) and isinstance(field.metadata, Mapping) for field in fields_of(cls))


def test_an_option_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Sample().count = 4  # type: ignore[misc]  # it has to fail


def test_a_command_is_a_click_command() -> None:
    assert isinstance(Parsed({"sample": Sample}).command, click.Command)


def test_a_variable_of_another_server_is_read_where_ours_is_not_set() -> None:
    def invariant(**env: str) -> bool | None:
        parsed = Parsed({"kernels": KernelOptions})
        assert parsed.run(env=env).exit_code == 0
        chosen: bool | None = parsed.values["kernels"].batch_invariant
        return chosen

    assert invariant() is None
    assert invariant(VLLM_BATCH_INVARIANT="1") is True
    assert invariant(VLLM_BATCH_INVARIANT="1", QUIRE_BATCH_INVARIANT="0") is False
