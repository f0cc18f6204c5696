"""Model folders as Transformers 4 and 5 write them, and what is reported about broken ones."""

from __future__ import annotations

import gc
import json
import mmap
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from engine_svc.executor.base import create_executor
from engine_svc.kv_cache.sizing import size_kv_cache
from engine_svc.layers.linear import qkv_parts
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.loader.cache_scales import is_cache_scale
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.formats.safetensors_files import Safetensors
from engine_svc.loader.memory_ahead import memory_ahead
from engine_svc.loader.read_ahead import read_ahead
from engine_svc.loader.weights import randomize
from engine_svc.parallel.group import ParallelGroup
from engine_svc.plan import KvCacheSpec
from quire.errors import StartupError
from quire.options.load import LoadOptions
from quire.options.model import ModelOptions
from quire.sampling import SamplingParameters
from tests.support.engine_options import engine_options
from tests.support.run_engine import GREEDY, random_prompts, run, running_engine, tokens
from tests.support.tiny_models import ROPES, check_greedy, make_model
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "llama", "llama-untied", rope_parameters=ROPES["linear"])


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of a model's folder that a test may change."""
    return Path(shutil.copytree(original, tmp_path / "model"))


def load(folder: Path, **options: Any) -> KvCacheSpec:
    chosen = engine_options(**options)
    executor = create_executor(chosen.parallel)
    try:
        return executor.load(ModelOptions(model=str(folder)), chosen)
    finally:
        executor.close()


def change_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


def as_transformers_4(config: dict[str, Any]) -> None:
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope["rope_theta"]
    config["rope_scaling"] = {"type": rope["rope_type"], "factor": rope["factor"]}
    config["torch_dtype"] = config.pop("dtype")


def test_a_folder_of_transformers_4(folder: Path, original: Path) -> None:
    change_config(folder, as_transformers_4)
    prompts = random_prompts(5, 40)
    with running_engine(original) as new, running_engine(folder) as old:
        assert tokens(run(new, prompts)) == tokens(run(old, prompts))


@pytest.mark.parametrize(
    ("saved", "dtype", "expected"),
    [
        ("float32", "auto", "float32"),
        ("bfloat16", "auto", "bfloat16"),
        ("bfloat16", "half", "float16"),
        ("float32", "bfloat16", "bfloat16"),
    ],
)
def test_dtype(folder: Path, saved: str, dtype: str, expected: str) -> None:
    change_config(folder, lambda config: config.update(dtype=saved))
    assert load(folder, dtype=dtype).dtype == expected


def test_overrides(folder: Path) -> None:
    assert load(folder, hf_overrides={"max_position_embeddings": 64}).max_model_len == 128  # linear scaling, factor 2


def test_the_type_is_changed_by_its_former_name_too(folder: Path) -> None:
    assert load(folder, hf_overrides={"torch_dtype": "bfloat16"}).dtype == "bfloat16"


def test_dummy_weights_need_no_file(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert load(folder, load_format="dummy").vocab_size == 160


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text)  # type: ignore[func-returns-value]  # the count is not used


def configured(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, lambda config: config.update(changes))


def weights(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    return lambda folder: change_weights(folder, change)


def only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


_GROUPED: dict[str, Any] = {
    "architectures": ["Dots1ForCausalLM"], "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
_WHOLE = _GROUPED | {"n_group": 1, "topk_group": 1}
_LATENT = _WHOLE | {
    "architectures": ["DeepseekV3ForCausalLM"], "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "kv_lora_rank": -3,
}  # fmt: skip
NORM, QUERY = "model.norm.weight", "model.layers.0.self_attn.q_proj.weight"
BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (remove("config.json"), r"not a model folder.*config\.json"),
    "not a JSON": (write("config.json", "{"), r"config\.json cannot be read"),
    "architecture": (configured(architectures=["BigBirdForCausalLM"]), r"BigBirdForCausalLM.*docs/models\.md"),
    "no architecture": (configured(architectures=None), r"not supported: .*docs/models\.md"),
    "activation": (configured(hidden_act="quick_gelu"), "quick_gelu.*silu"),
    "quantized": (configured(quantization_config={"quant_method": "aqlm"}), "aqlm"),
    "rope": (configured(rope_parameters={"rope_type": "spiral", "rope_theta": 1e4}), "spiral.*yarn"),
    "rope field": (configured(rope_parameters={"rope_type": "llama3", "rope_theta": 1e4}), "lack.*original_max"),
    "rope base": (configured(rope_parameters={"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}), "division by"),
    "rope factor": (configured(rope_parameters={"rope_type": "linear", "factor": 0, "rope_theta": 1e4}), "not numbers"),
    "epsilon": (configured(rms_norm_eps=None), "norm_eps is None; expected a number"),
    "sizes": (configured(hidden_size="x"), "hidden_size is 'x'; expected a whole number"),
    "no layers": (configured(num_hidden_layers=-1), "num_layers is -1; expected a whole number from 1 to 2,000"),
    "too many layers": (configured(num_hidden_layers=10**7), "num_layers is 10000000"),
    "null": (configured(num_hidden_layers=None), "invalid value for LlamaForCausalLM"),
    "no heads": (configured(num_attention_heads=0), "num_heads is 0"),
    "heads that share keys": (configured(num_key_value_heads=3), "num_kv_heads is 3; expected a divisor of num_heads"),
    "window": (
        configured(architectures=["MistralForCausalLM"], sliding_window=-1),
        "sliding_window is -1; expected a whole number from 1",
    ),
    "list of layers": (
        configured(architectures=["MistralForCausalLM"], layer_types=["full_attention"], num_hidden_layers=3),
        "fewer entries than num_hidden_layers, 3",
    ),
    "experts": (
        configured(architectures=["MixtralForCausalLM"], num_local_experts=4, num_experts_per_tok=9),
        "num_experts_per_tok is 9; expected a whole number from 1 to 4",
    ),
    "groups of experts": (configured(**_GROUPED, n_group=3, topk_group=1), "n_group is 3; .* divides 8 experts"),
    "chosen groups": (configured(**_GROUPED, n_group=4, topk_group=5), "topk_group is 5; .* from 1 to 4"),
    "vocabulary": (configured(vocab_size=-5), "vocab_size is -5"),
    "positions": (configured(max_position_embeddings="many"), "max_position_embeddings is 'many'"),
    "type": (configured(dtype="strange"), "type is 'strange'; choose one of .*bfloat16"),
    "type that is none": (configured(dtype=["float32"]), r"type is \['float32'\]; choose one of"),
    "features": (configured(intermediate_size=None), "intermediate_size is None; expected .* at least 0"),
    "no features": (configured(intermediate_size=0), "intermediate_size is 0; expected a whole number from 1"),
    "experts' features": (configured(**_WHOLE | {"moe_intermediate_size": 0}), "expert_size is 0; .* at least 1"),
    "factor on experts": (configured(**_WHOLE, routed_scaling_factor="x"), "scale is 'x'; expected a number"),
    "compressed attention": (configured(**_LATENT), "rank is -3; expected a whole number of at least 1"),
    "text model": (configured(text_config=[1]), "text_config is .* expected a JSON object"),
    "names": (configured(architectures=[["x"]]), "expected a list of names"),
    "rope list": (configured(rope_parameters=[1]), "invalid value for LlamaForCausalLM"),
    "rope text": (
        configured(rope_parameters={"rope_type": "linear", "factor": "a", "rope_theta": 1e4}), "factor 'a'.*not a num",
    ),
    "rope null": (configured(rope_parameters={"rope_type": "linear", "factor": None}), "lack 'factor', which linear"),
    "more rows": (weights(lambda tensors: tensors.update({QUERY: tensors[QUERY].repeat(2, 1)})),
                  rf"model\.safetensors: {QUERY}: shape \[128, 64\] in the checkpoint, expected \[64, 64\]"),
    "other numbers": (weights(lambda tensors: tensors.update({QUERY: tensors[QUERY].long()})),
                      rf"model\.safetensors: {QUERY}: type int64 in the checkpoint, expected float32"),
    "truncated": (lambda folder: truncate(folder / "model.safetensors"), r"model\.safetensors is not a valid safeten"),
    "no index": (write("model.safetensors.index.json", "[1]"), "is not a checkpoint index"),
    "deep index": (write("model.safetensors.index.json", "[" * 100_000), "is not a checkpoint index"),
    "index of no file": (write("model.safetensors.index.json", '{"weight_map": {"a": ""}}'), "not a file in the fold"),
    "index of others": (
        write("model.safetensors.index.json", '{"weight_map": {"a": "model.safetensors"}}'),
        r"model\.safetensors lacks the tensor a, which model\.safetensors\.index\.json says is in it",
    ),
    "no weights": (remove("model.safetensors"), "no .*safetensors"),
    "pickles": (only_pickles, "pickles"),
    "not safetensors": (write("model.safetensors", "x" * 100), "not a valid safetensors"),
    "missing tensor": (weights(lambda tensors: tensors.pop(NORM)), r"lacks norm\.weight"),  # type: ignore[arg-type]  # pop's result is not used
    "unknown tensor": (weights(lambda tensors: tensors.update(extra=torch.ones(1))), "no parameter for .*extra"),
    "wrong shape": (weights(lambda tensors: tensors.update({NORM: torch.ones(3)})), NORM.replace(".", r"\.")),
    "missing shard": (
        write("model.safetensors.index.json", '{"weight_map": {"a": "model-1.safetensors"}}'), "model-1.*is missing",
    ),
    "index outside": (
        write("model.safetensors.index.json", '{"weight_map": {"a": "../../etc/passwd"}}'), "not a file in the folder",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken_folders(folder: Path, what: str) -> None:
    spoil, message = BROKEN[what]
    spoil(folder)
    with pytest.raises(StartupError, match=message):
        load(folder)


def test_no_such_folder() -> None:
    with pytest.raises(StartupError, match=r"/no/such.*Check the path"):
        load(Path("/no/such"))


def test_longer_than_the_model(folder: Path) -> None:
    with pytest.raises(StartupError, match=r"--max-model-len 1000.*512 positions"):
        load(folder, max_model_len=1000)


@pytest.mark.parametrize(("scaling", "longest"), [({"rope_type": "linear", "factor": 8.0}, 512), ({}, 512)])
def test_positions_of_gemma_3_are_those_of_its_stretched_rotation(
    tmp_path: Path, scaling: dict[str, Any], longest: int
) -> None:
    folder = make_model(tmp_path, "gemma3")
    changes = {"rope_parameters": None, "rope_scaling": scaling or None, "max_position_embeddings": longest}
    assert load(folder, hf_overrides=changes).max_model_len == longest


@pytest.mark.parametrize("scaling", [{"rope_type": "dynamic", "factor": 4.0}, {"type": "linear", "factor": 4.0}])
def test_scaled_positions_reach_further(folder: Path, scaling: dict[str, Any]) -> None:
    assert load(folder, rope_scaling=scaling, max_model_len=1000).max_model_len == 1000
    with pytest.raises(StartupError, match=r"1025.*1024 positions.*--rope-scaling"):
        load(folder, rope_scaling=scaling, max_model_len=1025)


@pytest.mark.parametrize("family", ["mistral", "gemma3", "starcoder2"])
def test_without_a_sliding_window_the_context_is_as_long_as_one(tmp_path: Path, family: str) -> None:
    folder = make_model(tmp_path, family)
    window = json.loads((folder / "config.json").read_text())["sliding_window"]
    with running_engine(folder, disable_sliding_window=True) as engine:
        found = tokens(run(engine, random_prompts(3), SamplingParameters(temperature=0.0, max_tokens=window - 3)))
    check_greedy(folder, random_prompts(3), found, window - 3)
    spec = load(folder, disable_sliding_window=True)
    assert spec.max_model_len == window
    assert family != "mistral" or spec.windows == (None,)
    with pytest.raises(StartupError, match=f"--max-model-len 200 is more than the model's sliding window of {window}"):
        load(folder, disable_sliding_window=True, max_model_len=200)


def test_vllm_is_a_name_of_our_own_code(folder: Path) -> None:
    assert load(folder, model_impl="vllm").architecture == "LlamaForCausalLM"
    change_config(folder, lambda config: config.update(architectures=["BioGptForCausalLM"], model_type="biogpt"))
    with pytest.raises(StartupError, match="BioGptForCausalLM"):
        load(folder, model_impl="vllm")


@pytest.mark.parametrize("asked", [{"max_model_len": 257}, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}])
@pytest.mark.parametrize("family", ["opt", "gpt2", "xglm"])
def test_tables_of_positions_do_not_stretch(tmp_path: Path, family: str, asked: dict[str, Any]) -> None:
    folder = make_model(tmp_path, family)
    assert load(folder).max_model_len == 256
    with pytest.raises(StartupError, match=r"(--max-model-len 257|--rope-scaling): \w+ has a table of 256 positions"):
        load(folder, **asked)


def test_models_without_a_sliding_window_stay_as_they_are(folder: Path) -> None:
    assert load(folder, disable_sliding_window=True).max_model_len == load(folder).max_model_len == 512


@pytest.mark.slow
@pytest.mark.parametrize("size", [3])
def test_heads_that_cannot_be_split(folder: Path, size: int) -> None:
    with pytest.raises(StartupError, match=f"--tensor-parallel-size {size}"):
        load(folder, tensor_parallel_size=size, cpu_threads=1)


def test_one_rank_has_nobody_to_share_contexts_with(folder: Path) -> None:
    with pytest.raises(StartupError, match="--decode-context-parallel-size 2 does not divide --tensor-parallel-size 1"):
        load(folder, decode_context_parallel_size=2)


@pytest.mark.parametrize(("ranks", "firsts"), [(4, [0, 0, 1, 1]), (2, [0, 1]), (3, None)])
def test_key_value_heads_are_repeated_for_whole_shares_of_query_heads(ranks: int, firsts: list[int] | None) -> None:
    def first(rank: int) -> int:
        group = cast(
            "ParallelGroup", SimpleNamespace(rank=rank, world_size=ranks, divide=lambda total, _: total // ranks)
        )
        return qkv_parts(group, 12, 2, 8)["k"].first // 8

    if firsts is None:
        with pytest.raises(ValueError, match=r"key-value heads \(2\).*3 ranks"):
            first(0)
    else:
        assert [first(rank) for rank in range(ranks)] == firsts


def test_not_enough_memory_names_the_length_that_fits(folder: Path) -> None:
    options = engine_options(kv_cache_memory_bytes=200_000, max_model_len=512)
    spec = load(folder, kv_cache_memory_bytes=200_000)
    with pytest.raises(StartupError, match=r"largest --max-model-len that fits is (\d+)") as caught:
        size_kv_cache(spec, options)
    fits = int(str(caught.value).split("fits is ")[1].split(".")[0])
    shorter = load(folder, kv_cache_memory_bytes=200_000, max_model_len=fits)
    assert size_kv_cache(shorter, options).num_blocks > 0


def test_a_layer_is_packed_as_soon_as_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more unpacked matrices exist than a layer needs, and none has to wait for the garbage collector."""
    loaded: list[weakref.ref[LoadedParameter]] = []
    most = 0
    allocate, tensors = LoadedParameter.allocate, Safetensors.tensors

    def noted(parameter: LoadedParameter) -> None:
        allocate(parameter)
        if parameter.dim() == 2:
            loaded.append(weakref.ref(parameter))

    def counted(source: Safetensors) -> Iterator[tuple[str, TensorSlice]]:
        nonlocal most
        for found in tensors(source):
            yield found
            most = max(most, len({id(found()) for found in loaded} - {id(None)}))

    monkeypatch.setattr(LoadedParameter, "allocate", noted)
    monkeypatch.setattr(Safetensors, "tensors", counted)
    gc.disable()
    try:
        load(folder)
    finally:
        gc.enable()
    assert 0 < most <= 3  # the embedding, which stays; and one or two layers that are still incomplete


def test_what_is_not_loaded_takes_no_memory(original: Path) -> None:
    parameter = LoadedParameter((1000, 1000), torch.float32, torch.device("cpu"))
    assert parameter.shape == (1000, 1000)
    assert parameter.untyped_storage().nbytes() == 4
    with pytest.raises(RuntimeError, match="single memory location"):
        parameter.copy_(torch.ones(1000, 1000))
    parameter.allocate()
    assert parameter.fill_(1.0).sum() == 1e6


async def test_the_system_is_told_to_read_ahead(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def advise(descriptor: int, start: int, length: int, advice: int) -> None:
        assert (start, length, advice) == (0, 0, os.POSIX_FADV_WILLNEED)
        told.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    read_ahead(create_format(folder, LoadOptions()))
    await eventually(lambda: told == [str(folder / "model.safetensors")])
    read_ahead(create_format(folder / "nowhere", LoadOptions()))  # is not an error: the loader will report it


async def test_memory_is_touched_ahead_and_given_back(tmp_path: Path) -> None:
    def held() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(256 << 20)
    source, before = create_format(tmp_path, LoadOptions()), held()
    with memory_ahead(source, "cpu"):
        await eventually(lambda: held() - before > 200 << 20)
    assert held() - before < 50 << 20
    with memory_ahead(source, "cuda"):
        assert "memory ahead" not in [thread.name for thread in threading.enumerate()]
    with memory_ahead(create_format(tmp_path / "nowhere", LoadOptions()), "cpu"):
        pass  # is not an error: the loader will report it


def without_norm(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["biogpt.layer_norm.weight"]


def misshapen(tensors: dict[str, torch.Tensor]) -> None:
    tensors["biogpt.layer_norm.weight"] = torch.ones(3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_norm, r"lacks biogpt\.layer_norm\.weight \(1 in all\)"),
        (misshapen, r"layer_norm\.weight: shape \[3\] in the checkpoint does not fit \[64\]"),
    ],
)
def test_what_transformers_runs_is_whole_too(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], words: str
) -> None:
    folder = make_model(tmp_path, "biogpt")
    change_weights(folder, change)
    with pytest.raises(StartupError, match=words):
        load(folder)
    truncated = (folder / "model.safetensors").read_bytes()[:-10]
    (folder / "model.safetensors").write_bytes(truncated)
    with pytest.raises(StartupError, match=r"model\.safetensors is not a valid safetensors file"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("model.layers.0.self_attn.k_scale", True),
        ("model.layers.0.self_attn.attn.v_scale", True),
        ("model.layers.0.self_attn.k_proj.k_scale", True),
        ("model.layers.0.self_attn.v_proj.output_scale", True),
        ("model.layers.0.self_attn.kv_scale", True),
        ("model.layers.0.self_attn.k_proj.weight_scale", False),
        ("model.layers.0.self_attn.o_proj.output_scale", False),
        ("model.layers.0.self_attn.k_proj.input_scale", False),
    ],
)
def test_which_scales_are_of_the_kv_cache(name: str, is_one: bool) -> None:
    assert is_cache_scale(name) == is_one


def test_scales_of_a_kv_cache_are_left_out(folder: Path, original: Path, caplog: pytest.LogCaptureFixture) -> None:
    def add(weights: dict[str, torch.Tensor]) -> None:
        for layer in range(3):
            weights |= {f"model.layers.{layer}.self_attn.{part}_scale": torch.tensor(0.5) for part in "kv"}

    change_weights(folder, add)
    prompts = random_prompts(5)
    with caplog.at_level("INFO"), running_engine(original) as plain, running_engine(folder) as scaled:
        assert tokens(run(plain, prompts)) == tokens(run(scaled, prompts))
    assert caplog.text.count("scales for an 8-bit KV cache are not used without --kv-cache-dtype fp8") == 1


@pytest.mark.parametrize("names", ["self_attn.{}_scale", "self_attn.attn.{}_scale", "self_attn.{}_proj.output_scale"])
def test_a_kv_cache_of_8_bits_takes_the_checkpoints_scales(folder: Path, names: str) -> None:
    """Keys and values are 4096 times as large as usual, far beyond the range of e4m3 without scales."""

    def enlarge(weights: dict[str, torch.Tensor]) -> None:
        for name, tensor in weights.items():
            if name.endswith(("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias")):
                tensor *= 4096
            if name.endswith(("q_proj.weight", "q_proj.bias", "o_proj.weight")):
                tensor /= 4096

    def logprobs() -> list[float]:
        with running_engine(folder, kv_cache_dtype="fp8") as engine:
            ((output,),) = run(engine, random_prompts(60), replace(GREEDY, max_tokens=1, prompt_logprobs=0))
        return [position.logprobs[0] for position in output.prompt_logprobs]

    expected = logprobs()
    change_weights(folder, enlarge)
    assert logprobs() != pytest.approx(expected, abs=1e-3)
    paths = [f"model.layers.{layer}.{names.format(part)}" for layer in range(3) for part in "kv"]
    change_weights(folder, lambda weights: weights.update({path: torch.tensor([4096.0]) for path in paths}))
    assert logprobs() == pytest.approx(expected, abs=1e-3)
    change_weights(folder, lambda weights: weights.update({path: torch.zeros(1) for path in paths}))
    with pytest.raises(StartupError, match=r"_scale is \[0.0\] in the checkpoint; the scale .* must be one positive"):
        logprobs()


def test_dummy_weights_of_each_kind() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, scale = torch.empty(64, 64, dtype=torch.bfloat16), torch.empty(64, 4)
    codes, words = torch.empty(64, 64, dtype=torch.float8_e4m3fn), torch.empty(64, 64, dtype=torch.int32)
    for kind, tensor in (("weight", weight), ("weight_scale", scale), ("weight", codes), ("qweight", words)):
        randomize(tensor, kind, generator)
    assert 0.01 < weight.float().std() < 0.03
    assert 0 < scale.std() < 0.01
    assert codes.float().isfinite().all()
    assert codes.float().std() > 0.5
    assert len(words.unique()) > 4000
