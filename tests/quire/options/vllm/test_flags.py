"""vLLM's flags on `quire serve`: each is parsed, or answered with what has become of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from quire.cli import COMMANDS
from quire.options.base import OptionField
from quire.options.command import OptionsCommand
from quire.options.data_parallel import DataParallelOptions
from quire.options.parallel import ParallelOptions
from quire.options.vllm.answer import Answer, Kind
from quire.options.vllm.answers import ANSWERS, SHORT_NAMES
from quire.options.vllm.flags import VllmFlag, vllm_flags
from tests.support.for_each import for_each

KEPT: dict[str, Any] = {}


@functools.cache
def command() -> OptionsCommand:
    """`quire serve` without starting anything."""
    serve = COMMANDS["serve"]()
    assert isinstance(serve, OptionsCommand)
    return OptionsCommand("serve", "Help.", serve.groups, lambda **values: KEPT.update(values))


@functools.cache
def fields() -> Mapping[str, OptionField]:
    return {field.flag: field for group in command().sections() for field in group.fields}


def run(*arguments: str, env: Mapping[str, str] | None = None) -> Result:
    KEPT.clear()
    return CliRunner().invoke(command(), arguments, env=env)


def config(*arguments: str) -> Any:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return KEPT


def flat(result: Result) -> str:
    return " ".join(result.output.split())


def value_for(field: OptionField) -> list[str]:
    """Arguments that the flag accepts."""
    if field.type is bool:
        return []
    if choices := [choice for choice in field.metadata["choices"] if choice]:
        return [choices[0]]
    if field.type is dict:
        return ["{}"]
    number = str(max(1, int(field.metadata["minimum"] or 1)))
    return ["0.5" if field.metadata["maximum"] == 1 else number]


OBJECTS = {"attention-config": '{"backend": "native"}', "quantization-config": '{"global_scheme": "fp8_per_block"}'}


def expect_answer(name: str, answer: Answer) -> None:
    arguments = [] if answer.switch else [OBJECTS.get(name, "8")]
    result = run("model", f"--{name}", *arguments)
    if answer.kind is Kind.REFUSED:
        assert result.exit_code == 2, result.output
        assert " ".join(answer.said.split()) in flat(result)
    elif answer.kind is Kind.NO_EFFECT:
        assert result.exit_code == 0, result.output
        assert f"warning: --{name} has no effect. {answer.text}" in flat(result)
        assert not run("model", f"--{name}", *answer.taken[:1]).exception
    else:
        assert f"warning: --{name}" in result.output, result.output


@for_each("flag", vllm_flags().values())
def test_each_parses_or_is_answered(flag: VllmFlag) -> None:
    field = fields().get(f"--{flag.name}")
    if flag.name == "help":
        assert "--max-num-seqs" in run("--help").output
    elif flag.name == "config":
        assert "cannot be read" in run("--config", "/nowhere").output
    elif field is None:
        expect_answer(flag.name, ANSWERS[flag.name])
    else:
        result = run(field.flag, *value_for(field))
        assert result.exit_code == 0, result.output


def test_all_that_are_current_are_offered() -> None:
    """`quire serve` offers all 312 current flags."""
    shown = run("--help=all").output
    current = [flag.name for flag in vllm_flags().values() if flag.current]
    offered = [name for name in current if f"--{name}" in shown or name in ("help", "config")]
    assert (len(vllm_flags()), len(current), len(offered)) == (361, 312, 312)


@for_each("name", ANSWERS)
def test_an_answer_is_in_whole_sentences(name: str) -> None:
    answer = ANSWERS[name]
    assert answer.said[0].isupper() and answer.said.endswith(".")
    assert name in vllm_flags() or name == "spec-draft-tp"
    if answer.kind is Kind.ACTS_AS:
        assert answer.successor.partition(".")[0].replace("--no-", "--") in fields()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--runner", "generate", "--convert", "none", "--task=auto", "--api-server-count", "1", "-asc", "1"),
        ("-pp", "1", "-dcp", "1", "--data-parallel-backend", "mp", "--no-enable-eplb", "--no-trust-remote-code"),
        ("--preemption-mode", "recompute", "--worker-cls=auto", "--worker-extension-cls", ""),
        ("--tokenizer-pool-size", "0", "--additional-config", "{}", "--no-enable-log-requests"),
        ("-pcp", "1", "--renderer-num-workers=1", "--offload-backend", "auto", "--no-enable-return-routed-experts"),
    ],
)
def test_what_is_so_anyway_is_taken_in_silence(arguments: tuple[str, ...]) -> None:
    result = run("model", *arguments)
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        (("-tp", "2"), lambda kept: kept["engine"].parallel.tensor_parallel_size == 2),
        (("-dp", "3"), lambda kept: kept["engine"].parallel.data_parallel_size == 3),
        (("-dpl", "2", "-dpr=2", "-dpp", "7", "-dpb", "mp", "--headless"), lambda kept: kept["serve"].data_parallel
         == DataParallelOptions(2, 2, 7, "mp", headless=True)),
        (("-dpn", "1", "-dpa", "head", "--engines=2"), lambda kept: kept["engine"].parallel
         == ParallelOptions(data_parallel_size=2, data_parallel_rank=1, data_parallel_address="head")),
        (("--router-port", "9"), lambda kept: kept["serve"].data_parallel.data_parallel_rpc_port == 9),
        (("-dp=3",), lambda kept: kept["engine"].parallel.data_parallel_size == 3),
        (("--data_parallel_size", "3"), lambda kept: kept["engine"].parallel.data_parallel_size == 3),
        (("--preemption-mode", "swap"), lambda kept: kept["engine"].cache.swap_space == 4),
        (("--preemption-mode", "swap", "--swap-space", "9"), lambda kept: kept["engine"].cache.swap_space == 9),
        (("--max-concurrency", "9"), lambda kept: kept["router"].max_inflight_requests == 9),
        (("--disable-async-output-proc",), lambda kept: not kept["engine"].scheduler.async_scheduling),
        (("--max-model-len", "auto"), lambda kept: kept["engine"].form.max_model_len is None),
        (("--max-model-len", "25.6k"), lambda kept: kept["engine"].form.max_model_len == 25600),
        (("-ep",), lambda kept: kept["engine"].parallel.experts.enable_expert_parallel),
        (("-sc.method", "ngram", "-sc.num_speculative_tokens=3"),
         lambda kept: kept["engine"].speculative.chosen().num_speculative_tokens == 3),
        (("-cc.mode=3", "-cc", '{"cudagraph_mode": "NONE"}'), lambda kept: kept["engine"].kernels.enforce_eager),
        (("--max-num-queued-tokens", "9"), lambda kept: kept["router"].max_queued_tokens == 9),
        (("--disable-log-stats",), lambda kept: kept["engine"].log_stats.log_stats_interval_seconds == 0),
        (("-O3",), lambda kept: not kept["engine"].kernels.enforce_eager),
        (("-O", "3"), lambda kept: kept["model"].model == "model"),
        (("-O.level=3", "-O.cudagraph_capture_sizes+=1,2", "-O.cudagraph_capture_sizes+", "8"),
         lambda kept: kept["engine"].kernels.cuda_graph_sizes == (1, 2, 8)),
        (('-O={"level": 2, "max_capture_size": 64}',), lambda kept: kept["engine"].kernels.cuda_graph_sizes == (64,)),
        (("--compilation-config", '{"use_cudagraph": false}'), lambda kept: kept["engine"].kernels.enforce_eager),
        (("--compilation_config.cudagraph_mode", "NONE"), lambda kept: kept["engine"].kernels.enforce_eager),
        (("-ac.backend", "native", "-ac.flash_attn_version=null"),
         lambda kept: kept["engine"].kernels.attention_backend == "native"),
        (("--attention-config", '{"backend": "auto", "backend_per_kind": {}, "use_cudnn_prefill": false}'),
         lambda kept: kept["engine"].kernels.attention_backend == "auto"),
        (("--quantization-config", '{"global_scheme": "fp8_per_tensor", "moe": "fp8_per_block", "ignore": []}'),
         lambda kept: kept["engine"].form.quantization == "fp8"),
        (("--quantization_config.moe", "int8_per_channel_weight_only"),
         lambda kept: kept["engine"].form.quantization == "experts_int8"),
        (("--quantization-config", "{}"), lambda kept: kept["engine"].form.quantization is None),
        (("--api-key", "k1", "k2", "--port", "9"), lambda kept: kept["gateway"].api_key == ("k1", "k2")),
        (("--served-model-name", "a", "b"), lambda kept: kept["model"].served_model_name == ("a", "b")),
        (("--cuda-graph-sizes", "1", "2", "128"), lambda kept: kept["engine"].kernels.cuda_graph_sizes == (1, 2, 128)),
        (("--uvicorn-log-level", "trace"), lambda kept: kept["gateway"].uvicorn_log_level == "trace"),
        (
            ("--language-model-only",),
            lambda kept: kept["engine"].images.limit_mm_per_prompt == "image=0,video=0,audio=0",
        ),
    ],
)  # fmt: skip
def test_other_ways_to_write_them(arguments: tuple[str, ...], read: Callable[[Any], bool]) -> None:
    assert read(config("model", *arguments))
    assert KEPT["model"].model == "model"


@pytest.mark.parametrize(
    ("flag", "read"),
    [
        ("--served-model-name", lambda kept: kept["model"].served_model_name),
        ("--api-key", lambda kept: kept["gateway"].api_key),
        ("--ignore-patterns", lambda kept: kept["engine"].load.ignore_patterns),
        ("--logits-processors", lambda kept: kept["engine"].generation.logits_processors),
    ],
)
def test_words_behind_a_flag_need_no_model_before_them(flag: str, read: Callable[[Any], tuple[str, ...]]) -> None:
    assert read(config(flag, "a", "b", "c", "--port", "9")) == ("a", "b", "c")
    assert (KEPT["model"].model, KEPT["gateway"].port) == ("quire-demo", 9)
    assert read(config("--port", "9", flag, "a", "b", "--", "folder")) == ("a", "b")
    assert KEPT["model"].model == "folder"


def test_a_word_behind_other_flags_is_the_model() -> None:
    assert config("--middleware", "a.One", "folder")["model"].model == "folder"
    assert config("folder", "--middleware", "a.One", "b.Two")["gateway"].middleware == ("a.One", "b.Two")


def test_numbers_behind_a_flag_leave_the_model_alone() -> None:
    assert config("--cuda-graph-sizes", "1", "2", "folder")["model"].model == "folder"
    assert KEPT["engine"].kernels.cuda_graph_sizes == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-O.levle=3",), "levle is not known. Did you mean level?"),
        (("-O={",), "neither JSON nor a level"),
        (("-O.cudagraph_mode=HALF",), "cudagraph_mode 'HALF' is not one of"),
        (("-O.cudagraph_capture_sizes=[0]",), "integers of at least 1"),
        (("-ac.backnd", "native"), "backnd is not known. Did you mean backend?"),
        (("-ac.backend", "FLASH_ATTN"), "Quire has its own kernels"),
        (("-ac.flash_attn_version", "3"), "flash_attn_version 3 chooses among vLLM's kernels"),
        (("--attention-config", "[]"), "is not a JSON object"),
        (("--quantization-config", "{"), "is not JSON"),
        (("--quantization-config.ignore", '["lm_head"]'), 'ignore ["lm_head"] is not supported'),
        (("--quantization-config.global_scheme", "mxfp8"), '"mxfp8" is not a scheme'),
        (("--quantization-config.linear", '{"weight": "fp8"}'), "is not a scheme"),
        (
            ("--quantization-config.linear", "fp8_per_block", "--quantization-config.moe=int8_per_channel_weight_only"),
            "linear layers and experts are quantized in the same way",
        ),
        (("--eplb-config.windw_size", "5"), "windw_size is not known. Did you mean window_size?"),
        (("--all2all-backend", "deepep_low_latency"), "needs a kernel library that Quire does not include"),
        (
            ("--kv-offloading-backend", "lmcache"),
            "Quire offloads blocks to host memory by itself, which is what native",
        ),
        (("--weight-transfer-config.backend", "ipc"), "its handles of memory are pickled objects"),
        (("--tool-server", "demo"), "--tool-server is an option of vLLM that Quire does not implement."),
        (("--kv-transfer-config", '{"kv_connector": "NixlConnector"}'), "Quire has SharedStorageConnector"),
        (("--max-num-seq", "5"), "Did you mean --max-num-seqs? Maximum number of sequences running at once."),
        (("--device", "tpu"), "Quire runs only on CPUs and NVIDIA GPUs."),
        (("--kv-cache-dtype", "fp8_inc"), "It is for Gaudi"),
        (("--distributed-executor-backend", "dask"), "is not one of 'auto', 'uni', 'mp', 'ray', 'external_launcher'"),
    ],
)
def test_what_is_wrong_is_named(arguments: tuple[str, ...], words: str) -> None:
    result = run("model", *arguments)
    assert result.exit_code == 2
    assert words in flat(result)


def test_a_level_says_that_it_has_no_effect() -> None:
    assert "--compilation-config: level has no effect" in run("model", "-O3").output


def test_nothing_is_said_of_successors_where_that_is_not_wanted() -> None:
    assert not run("model", "-dp", "2", env={"VLLM_NO_DEPRECATION_WARNING": "1"}).output


def test_short_names_are_those_of_flags() -> None:
    assert {name for name in SHORT_NAMES.values() if name not in vllm_flags()} == {"spec-draft-tp"}


def test_a_command_answers_what_concerns_it() -> None:
    """A router has no speculation to configure."""
    router = COMMANDS["router"]()
    assert isinstance(router, click.Command)
    assert "No such option" in CliRunner().invoke(router, ["--speculative-model", "m"]).output
