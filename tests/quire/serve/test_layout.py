"""Which processes a local stack has, and the arguments they get."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import pytest

from quire.errors import StartupError
from quire.options.data_parallel import DataParallelOptions
from quire.options.engine import EngineOptions
from quire.options.gateway import GatewayOptions
from quire.options.generation import GenerationOptions
from quire.options.log import LogOptions
from quire.options.lora import LoraOptions
from quire.options.model import ModelOptions
from quire.options.multimodal import ImageEncoderOptions
from quire.options.parallel import ParallelOptions
from quire.options.reasoning import ReasoningOptions
from quire.options.router import RouterOptions
from quire.options.serve import ServeOptions
from quire.options.server import RpcSecurityOptions
from quire.options.tokenizer import TokenizerOptions
from quire.options.tools import ToolOptions
from quire.serve.layout import Layout, StackOptions, choose_layout, with_derived
from quire.serve.ports import HeldPorts
from quire.serve.processes import process_specs
from quire.serve.supervisor import ProcessSpec


def stack_options(engines: int = 1, serve: ServeOptions = ServeOptions(), **gateway: Any) -> StackOptions:
    here: dict[str, Any] = {"router_address": (), "tokenizer_address": ()}
    return StackOptions(
        serve, ModelOptions("m"), GatewayOptions(**here | gateway), TokenizerOptions(), RouterOptions(),
        EngineOptions(parallel=ParallelOptions(data_parallel_size=engines)), RpcSecurityOptions(), LogOptions(),
    )  # fmt: skip


def specs_of(options: StackOptions) -> dict[str, ProcessSpec]:
    return {spec.name: spec for spec in process_specs(options, layout_of(options))}


def layout_of(options: StackOptions) -> Layout:
    with HeldPorts() as ports:
        return choose_layout(options, ports)


def values(spec: ProcessSpec, flag: str) -> list[str]:
    return [spec.command[index + 1] for index, word in enumerate(spec.command) if word == flag]


def test_everything_is_local_by_default() -> None:
    specs = specs_of(stack_options(2))
    assert list(specs) == ["engine-0", "engine-1", "router", "tokenizer", "gateway"]
    engines = [f"127.0.0.1:{values(specs[name], '--port')[0]}" for name in ("engine-0", "engine-1")]
    assert values(specs["router"], "--workers") == engines
    assert values(specs["gateway"], "--router-address") == [f"127.0.0.1:{values(specs['router'], '--port')[0]}"]
    assert values(specs["gateway"], "--tokenizer-address") == [f"127.0.0.1:{values(specs['tokenizer'], '--port')[0]}"]


def test_a_router_that_is_named_is_used_with_the_engines_that_it_has() -> None:
    specs = specs_of(stack_options(router_address=("r:1", "r:2")))
    assert list(specs) == ["tokenizer", "gateway"]
    assert values(specs["gateway"], "--router-address") == ["r:1", "r:2"]


def test_a_tokenizer_that_is_named_is_used() -> None:
    specs = specs_of(stack_options(tokenizer_address=("t:1",)))
    assert list(specs) == ["engine", "router", "gateway"]
    assert values(specs["gateway"], "--tokenizer-address") == ["t:1"]


def test_encoders_work_for_the_engines_of_the_stack() -> None:
    """They get the options of what they load."""
    options = with_derived(stack_options(serve=ServeOptions(encoder_workers=2)))
    lora = LoraOptions(enable_lora=True)
    specs = specs_of(dataclasses.replace(options, engine=dataclasses.replace(options.engine, lora=lora)))
    assert list(specs) == ["engine", "encoder-0", "encoder-1", "router", "tokenizer", "gateway"]
    addresses = [f"127.0.0.1:{values(specs[name], '--port')[0]}" for name in ("engine", "encoder-0", "encoder-1")]
    assert values(specs["router"], "--workers") == addresses
    config = values(specs["engine"], "--ec-transfer-config")
    assert [json.loads(each) for each in config] == [{"ec_connector": "GrpcConnector", "ec_role": "ec_consumer"}]
    for name in ("encoder-0", "encoder-1"):
        assert "--mm-encoder-only" in specs[name].command
        assert not {"--enable-lora", "--ec-transfer-config"} & set(specs[name].command)
    assert "--enable-lora" in specs["engine"].command


def test_a_stack_needs_workers_that_generate() -> None:
    engine = EngineOptions(images=ImageEncoderOptions(mm_encoder_only=True))
    with pytest.raises(StartupError, match="--encoder-workers N"):
        layout_of(dataclasses.replace(stack_options(), engine=engine))
    second = DataParallelOptions(headless=True, data_parallel_start_rank=1, data_parallel_size_local=1)
    with pytest.raises(StartupError, match="--encoder-workers is for the node with the router"):
        layout_of(stack_options(2, ServeOptions(encoder_workers=1, data_parallel=second)))


def test_options_of_adapters_are_checked_before_anything_is_started() -> None:
    engine = EngineOptions(lora=LoraOptions(allow_runtime_lora_updating=True))
    options = dataclasses.replace(stack_options(allow_runtime_lora_updating=True), engine=engine)
    with pytest.raises(StartupError, match="no effect without --enable-lora"):
        layout_of(options)
    elsewhere = stack_options(allow_runtime_lora_updating=True, router_address=("r:1",))
    (_, gateway) = specs_of(dataclasses.replace(elsewhere, engine=engine)).values()
    assert "--allow-runtime-lora-updating" in gateway.command


def test_an_adapter_with_the_name_of_an_alias_is_refused() -> None:
    """No request would reach it."""
    engine = EngineOptions(lora=LoraOptions(enable_lora=True, lora_modules=("sql=/adapters/sql",)))
    router = RouterOptions(model_alias=("chat=m", "sql=m:9,n:1"))
    options = dataclasses.replace(stack_options(), engine=engine, router=router)
    with pytest.raises(StartupError, match=r"--lora-modules .*'sql'.*--model-alias sql=m:9,n:1.* another name"):
        layout_of(options)
    assert layout_of(dataclasses.replace(options, router=RouterOptions(model_alias=("chat=sql",)))).engines


def test_without_a_tokenizer_none_is_started_and_none_is_read() -> None:
    engine = dataclasses.replace(EngineOptions(), generation=GenerationOptions(skip_tokenizer_init=True))
    options = dataclasses.replace(stack_options(skip_tokenizer_init=True), engine=engine)
    specs = specs_of(options)
    assert list(specs) == ["engine", "router", "gateway"]
    assert all("--skip-tokenizer-init" in specs[name].command for name in ("engine", "gateway"))
    elsewhere = stack_options(skip_tokenizer_init=True, router_address=("r:1",))
    assert list(specs_of(dataclasses.replace(elsewhere, engine=engine))) == ["gateway"]
    useless = dataclasses.replace(
        options, model=ModelOptions("m", tokenizer="t"), tokenizer=TokenizerOptions(chat_template="x")
    )
    with pytest.raises(StartupError, match="no tokenizer: --chat-template, --tokenizer would have no effect"):
        layout_of(useless)
    with pytest.raises(StartupError, match="--tokenizer-address would have no effect"):
        layout_of(stack_options(skip_tokenizer_init=True, tokenizer_address=("t:1",)))
    for parsers in ({"reasoning": ReasoningOptions(reasoning_parser="qwen3")}, {"tools": ToolOptions("hermes")}):
        with pytest.raises(StartupError, match="reads text"):
            GatewayOptions(skip_tokenizer_init=True, **parsers).check()  # type: ignore[arg-type]


def test_options_of_services_that_run_elsewhere_are_refused() -> None:
    serve = ServeOptions(data_parallel=DataParallelOptions(data_parallel_rpc_port=5))
    with pytest.raises(StartupError, match=r"--router-address .*: --data-parallel-rpc-port, --data-parallel-size "):
        layout_of(stack_options(2, serve, router_address=("r:1",)))
    elsewhere = dataclasses.replace(
        stack_options(tokenizer_address=("t:1",)), tokenizer=TokenizerOptions(chat_template="x")
    )
    with pytest.raises(StartupError, match=r"--tokenizer-address .*: --chat-template would"):
        layout_of(elsewhere)


@pytest.mark.parametrize("seconds", [0.5, 600.0])
def test_all_services_have_the_time_to_drain_that_was_asked_for(seconds: float) -> None:
    specs = specs_of(stack_options(drain_timeout_seconds=seconds))
    assert {values(spec, "--drain-timeout-seconds")[0] for spec in specs.values()} == {str(seconds)}


def test_options_in_the_environment_are_nobodys_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """QUIRE_PORT is the gateway's port, and flags override it; other services must not take it for theirs."""
    for name in ("QUIRE_PORT", "QUIRE_HOST", "QUIRE_CONFIG", "QUIRE_METRICS_PORT", "VLLM_BATCH_INVARIANT"):
        monkeypatch.setenv(name, "9")
    monkeypatch.setenv("HF_HOME", "/hub")
    for spec in specs_of(stack_options()).values():
        assert spec.environment["HF_HOME"] == "/hub"
        assert not [name for name in spec.environment if name.startswith(("QUIRE_", "VLLM_"))]


def test_keys_travel_by_environment_and_close_the_services_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = specs_of(with_derived(stack_options(api_key=("secret",))))
    assert specs["gateway"].environment["QUIRE_API_KEY"] == '["secret"]'
    assert len({spec.environment["QUIRE_GRPC_TOKEN"] for spec in specs.values()}) == 1
    assert not [spec for spec in specs.values() if "secret" in " ".join(spec.command)]


def test_a_token_that_others_need_is_not_made_up() -> None:
    with pytest.raises(StartupError, match="set the same --grpc-token"):
        with_derived(stack_options(api_key=("key",), enable_kv_transfer_params=True))


def test_the_formats_of_the_model_in_the_box_are_known() -> None:
    def parsers(model: str, reasoning: ReasoningOptions = ReasoningOptions(), **tools: Any) -> tuple[str, str | None]:
        options = stack_options(reasoning=reasoning, tools=ToolOptions(**tools))
        derived = with_derived(dataclasses.replace(options, model=ModelOptions(model))).gateway
        return derived.reasoning.reasoning_parser, derived.tools.tool_call_parser

    assert parsers("quire-demo") == ("qwen3", "hermes")
    assert parsers("m") == ("", None)
    assert parsers("quire-demo", ReasoningOptions("step3"), tool_call_parser="pythonic") == ("step3", "pythonic")
    assert parsers("quire-demo", ReasoningOptions(enable_reasoning=False)) == ("", "hermes")
    assert parsers("quire-demo", ReasoningOptions(enable_reasoning=True), enable_auto_tool_choice=True) == (
        "qwen3", "hermes",
    )  # fmt: skip
    with pytest.raises(StartupError, match="--enable-auto-tool-choice needs --tool-call-parser"):
        parsers("m", enable_auto_tool_choice=True)
    # vLLM's names for gpt-oss, of which one is enough.
    assert parsers("m", tool_call_parser="openai", enable_auto_tool_choice=True) == ("openai_gptoss", "openai")
    with pytest.raises(StartupError, match="Set --reasoning-parser openai_gptoss, which reads both"):
        parsers("m", ReasoningOptions("qwen3"), tool_call_parser="openai")
    without = dataclasses.replace(stack_options(skip_tokenizer_init=True), model=ModelOptions())
    assert with_derived(without).gateway == without.gateway  # there is no text for parsers to read


def test_engines_share_the_processors() -> None:
    first, *_, last = sorted(os.sched_getaffinity(0))
    options = stack_options(2)
    kernels = dataclasses.replace(options.engine.kernels, cpu_threads_bind=f"{first}|{last}")
    options = dataclasses.replace(options, engine=dataclasses.replace(options.engine, kernels=kernels))
    specs = specs_of(options)
    assert [values(specs[f"engine-{index}"], "--cpu-threads-bind") for index in range(2)] == [[str(first)], [str(last)]]
    assert values(specs["engine-1"], "--cpu-threads") == ["1"]

    kernels = dataclasses.replace(
        options.engine.kernels, cpu_threads_bind="auto", numa_bind_cpus=(str(first), str(last))
    )
    options = dataclasses.replace(options, engine=dataclasses.replace(options.engine, kernels=kernels))
    specs = specs_of(options)
    assert [values(specs[f"engine-{index}"], "--numa-bind-cpus") for index in range(2)] == [[str(first)], [str(last)]]


def test_services_let_the_engines_run_first() -> None:
    specs = specs_of(stack_options(2))
    assert {name for name, spec in specs.items() if spec.niceness} == {"router", "tokenizer", "gateway"}


def test_engines_ask_for_huge_pages_unless_the_user_has_tunables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    specs = specs_of(stack_options())
    assert specs["engine"].environment["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert "GLIBC_TUNABLES" not in specs["gateway"].environment
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=7")
    assert specs_of(stack_options())["engine"].environment["GLIBC_TUNABLES"] == "glibc.malloc.tcache_count=7"


def test_a_grpc_api_is_one_process() -> None:
    with_derived(stack_options(grpc=True))
    with pytest.raises(StartupError, match="--api-server-count is for HTTP"):
        with_derived(stack_options(serve=ServeOptions(api_server_count=2), grpc=True))
