"""How the environment affects a command at its start."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from quire.cli import COMMANDS, cli
from quire.options.command import OptionsCommand
from quire.options.vllm.variables import OF_OTHERS, READ_ELSEWHERE, WITHOUT_EFFECT

KEPT: dict[str, Any] = {}


@functools.cache
def command() -> OptionsCommand:
    """`quire serve` without starting anything."""
    serve = COMMANDS["serve"]()
    assert isinstance(serve, OptionsCommand)
    return OptionsCommand("serve", "Help.", serve.groups, lambda **values: KEPT.update(values))


def run(*arguments: str, env: Mapping[str, str] | None = None) -> Result:
    KEPT.clear()
    result = CliRunner().invoke(command(), arguments, env=env)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize(
    ("name", "text", "option", "read"),
    [
        ("VLLM_API_KEY", "a b", "QUIRE_API_KEY", lambda kept: kept["gateway"].api_key == ("a", "b")),
        ("VLLM_LOGGING_LEVEL", "DEBUG", "QUIRE_LOG_LEVEL", lambda kept: kept["log"].log_level == "debug"),
        ("VLLM_LOGGING_CONFIG_PATH", "logs.yaml", "QUIRE_LOG_CONFIG_FILE",
         lambda kept: kept["log"].log_config_file == "logs.yaml"),
        ("VLLM_CPU_KVCACHE_SPACE", "4", "QUIRE_KV_CACHE_MEMORY_BYTES",
         lambda kept: kept["engine"].cache.kv_cache_memory_bytes == 4 * 2**30),
        ("VLLM_CPU_OMP_THREADS_BIND", "all", "QUIRE_CPU_THREADS_BIND",
         lambda kept: kept["engine"].kernels.cpu_threads_bind == "all"),
        ("VLLM_XGRAMMAR_CACHE_MB", "1", "QUIRE_CONSTRAINT_CACHE_BYTES",
         lambda kept: kept["tokenizer"].structured_outputs.constraint_cache_bytes == 2**20),
        ("VLLM_USE_DUMMY_WEIGHTS", "1", "QUIRE_LOAD_FORMAT", lambda kept: kept["engine"].load.load_format == "dummy"),
        ("VLLM_DP_SIZE", "3", "QUIRE_DATA_PARALLEL_SIZE",
         lambda kept: kept["engine"].parallel.data_parallel_size == 3),
        ("VLLM_DP_RANK", "2", "QUIRE_DATA_PARALLEL_RANK",
         lambda kept: kept["engine"].parallel.data_parallel_rank == 2),
        ("VLLM_DP_MASTER_IP", "10.0.0.1", "QUIRE_DATA_PARALLEL_ADDRESS",
         lambda kept: kept["engine"].parallel.data_parallel_address == "10.0.0.1"),
        ("VLLM_DP_MASTER_PORT", "7", "QUIRE_DATA_PARALLEL_MASTER_PORT",
         lambda kept: kept["engine"].parallel.data_parallel_master_port == 7),
        ("VLLM_DISABLE_CUSTOM_ALL_REDUCE", "1", "QUIRE_DISABLE_CUSTOM_ALL_REDUCE",
         lambda kept: kept["engine"].parallel.executor.disable_custom_all_reduce),
        ("VLLM_ENGINE_ITERATION_TIMEOUT_S", "7", "QUIRE_STEP_TIMEOUT_SECONDS",
         lambda kept: kept["engine"].watchdog.step_timeout_seconds == 7),
        ("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "7", "QUIRE_STEP_TIMEOUT_SECONDS",
         lambda kept: kept["engine"].watchdog.step_timeout_seconds == 7),
        ("VLLM_REGEX_COMPILATION_TIMEOUT_S", "7", "QUIRE_CONSTRAINT_TIMEOUT_SECONDS",
         lambda kept: kept["tokenizer"].structured_outputs.constraint_timeout_seconds == 7),
        ("VLLM_MAX_N_SEQUENCES", "7", "QUIRE_MAX_CHOICES_PER_REQUEST",
         lambda kept: kept["gateway"].max_choices_per_request == 7),
        ("VLLM_LOG_STATS_INTERVAL", "7", "QUIRE_LOG_STATS_INTERVAL_SECONDS",
         lambda kept: kept["engine"].log_stats.log_stats_interval_seconds == 7),
    ],
)  # fmt: skip
def test_a_variable_of_vllm_acts(name: str, text: str, option: str, read: Callable[[Any], bool]) -> None:
    result = run(env={name: text})
    assert read(KEPT)
    assert result.output == f"warning: {name} is read as {option}.\n"


def test_a_variable_that_says_no_is_none() -> None:
    assert run(env={"VLLM_USE_DUMMY_WEIGHTS": "0"}).output == ""
    assert KEPT["engine"].load.load_format == "auto"


def test_variables_without_effect_say_why() -> None:
    given = {name.replace("*", "ANYTHING"): why for name, why in WITHOUT_EFFECT.items()}
    said = run(env=dict.fromkeys(given, "1")).output.splitlines()
    assert sorted(said) == sorted(f"warning: {name} has no effect. {why}" for name, why in given.items())


def test_variables_of_vllm_that_are_not_known_are_named_in_one_line() -> None:
    output = run(env={"VLLM_LOGGIN_LEVEL": "debug", "VLLM_QQQQ": "1", "VLLM_ROUTER_SERVICE_HOST": "10.0.0.1"}).output
    assert output == (
        "warning: Not known to Quire, and without effect: VLLM_LOGGIN_LEVEL (did you mean VLLM_LOGGING_LEVEL?), "
        "VLLM_QQQQ.\n"
    )


def test_a_variable_of_another_command_is_no_unknown_one() -> None:
    result = CliRunner().invoke(cli, ["engine", "--show-config"], env={"VLLM_API_KEY": "k"})
    assert (result.exit_code, result.stderr) == (0, "")


def test_variables_of_others_are_passed_over() -> None:
    assert run(env=dict.fromkeys(OF_OTHERS, "1") | dict.fromkeys(READ_ELSEWHERE, "1")).output == ""


def test_a_child_of_a_supervisor_says_nothing() -> None:
    assert run(env={"VLLM_USE_V1": "1", "QUIRE_SUPERVISED_NAME": "engine"}).output == ""


def test_a_variable_that_is_no_option_is_named() -> None:
    output = run(env={"QUIRE_MAX_NUM_SEQ": "4"}).output
    assert "QUIRE_MAX_NUM_SEQ is not an option of Quire and has no effect. Did you mean QUIRE_MAX_NUM_SEQS?" in output


def test_a_variable_of_another_command_is_known() -> None:
    result = CliRunner().invoke(cli, ["workers", "--show-config"], env={"QUIRE_MAX_NUM_SEQS": "4", "VLLM_USE_V1": "1"})
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_kubernetes_service_called_quire_does_no_harm() -> None:
    address = "tcp://10.96.0.1:8000"
    output = run(
        env={
            "QUIRE_SERVICE_HOST": "10.96.0.1", "QUIRE_SERVICE_PORT": "8000", "QUIRE_SERVICE_PORT_HTTP": "8000",
            "QUIRE_PORT": address, "QUIRE_PORT_8000_TCP": address, "QUIRE_PORT_8000_TCP_PROTO": "tcp",
            "QUIRE_PORT_8000_TCP_PORT": "8000", "QUIRE_PORT_8000_TCP_ADDR": "10.96.0.1",
            "QUIRE_ROUTER_SERVICE_HOST": "10.96.0.2", "QUIRE_ROUTER_PORT": "tcp://10.96.0.2:50051",
        }
    ).output  # fmt: skip
    assert KEPT["gateway"].port == 8000
    assert [line.split()[1].partition("=")[0] for line in output.splitlines()] == ["QUIRE_PORT"]


def test_where_each_value_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("max-num-batched-tokens: 512\nserved-model-name: named\nengines: 3\n")
    result = run(
        "folder", "--config", str(file), "--max-num-seqs", "1k", "--api-key", "hush", "--show-config",
        env={"QUIRE_PORT": "9", "VLLM_LOGGING_LEVEL": "DEBUG"},
    )  # fmt: skip
    assert not KEPT
    lines = [line.split("  # ") for line in result.stdout.splitlines() if "  # " in line]
    found = {line[0].strip(): line[1] for line in lines}
    assert "hush" not in result.stdout
    assert found["# api-key: (hidden)"] == "command line"
    assert found["max-num-seqs: 1000"] == found['model: "folder"'] == "command line"
    assert found["port: 9"] == "environment (QUIRE_PORT)"
    assert found['log-level: "debug"'] == "environment (VLLM_LOGGING_LEVEL)"
    for line in ("max-num-batched-tokens: 512", 'served-model-name: ["named"]', "data-parallel-size: 3"):
        assert found[line] == "file"
    assert found["seed: null"] == "default"


def test_what_is_shown_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    overrides = json.dumps({"temperature": 0.5})
    arguments = ("--max-num-seqs", "7", "--override-generation-config", overrides, "--no-enable-prefix-caching")
    file = tmp_path / "shown.yaml"
    file.write_text(run(*arguments, "--show-config").stdout)
    run("--config", str(file))
    again = dict(KEPT)
    run(*arguments)
    assert again == KEPT
