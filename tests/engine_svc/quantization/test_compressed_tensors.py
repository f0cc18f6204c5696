"""Checkpoints of compressed-tensors, compressed and decompressed here by that library itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams

from engine_svc.ops.plain import PlainOps
from engine_svc.ops.weights import CodedWeight, Int8Weight
from engine_svc.quantization.base import ModelForm, Place, PlaceKind
from engine_svc.quantization.compressed_tensors import CompressedTensors
from quire.errors import StartupError
from tests.engine_svc.models.conftest import ModelFolder
from tests.engine_svc.quantization.checks import check
from tests.support.quantized import Matrix, quantized_model
from tests.support.quantized_floats import words

FORM = ModelForm(PlainOps(), torch.float32)
GROUP = 16
W4: dict[str, Any] = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
W8: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FP8: dict[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
INPUTS: dict[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def by_the_library(kind: str, inputs: Mapping[str, Any] | None = None, **weights: Any) -> Callable[..., Matrix]:
    """Returns a function that quantizes a weight with the library, in the given format."""
    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(
        targets=["Linear"], weights=args, input_activations=QuantizationArgs(**inputs) if inputs else None
    )
    compressor = BaseCompressor.get_value_from_registry(kind)

    def convert(weight: torch.Tensor) -> Matrix:
        lines = weight
        if args.strategy == "block":
            rows, columns = args.block_structure
            lines = weight.unflatten(0, (-1, rows)).unflatten(2, (-1, columns)).transpose(1, 2).flatten(2)
        elif args.strategy == "group":
            lines = weight.unflatten(1, (-1, args.group_size))
        elif args.strategy == "tensor":
            lines = weight.flatten()
        keep = args.strategy == "channel"
        scale, zero = calculate_qparams(lines.amin(-1, keepdim=keep), lines.amax(-1, keepdim=keep), args)
        if args.strategy == "tensor":
            scale, zero = scale.reshape(1), zero.reshape(1)
        held = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        packed = compressor.compress(held, scheme)
        meant = compressor.decompress(dict(packed), scheme)["weight"]
        if inputs is not None and not inputs.get("dynamic"):
            packed = {**packed, "input_scale": torch.tensor([0.5]), "input_zero_point": torch.tensor([0])}
        return Matrix({name: each.contiguous() for name, each in packed.items()}, meant.double())

    return convert


def group(weights: Mapping[str, Any] | None, inputs: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None} | more


def settings(kind: str, *groups: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    numbered = {f"group_{index}": each for index, each in enumerate(groups)}
    return {
        "quant_method": "compressed-tensors", "format": kind, "config_groups": numbered, "ignore": ["lm_head"],
        "quantization_status": "compressed", "kv_cache_scheme": None,
    } | more  # fmt: skip


FORMS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any] | None]] = {
    "W4A16": ("llama", "pack-quantized", W4, None),
    "W4A16 with zero points": ("qwen3", "pack-quantized", W4 | {"symmetric": False}, None),
    "W8A16": ("phi3", "pack-quantized", W8, None),
    "W8A16 with groups": ("llama", "pack-quantized", W4 | {"num_bits": 8}, None),
    "integers alone": ("llama", "int-quantized", W8 | {"strategy": "tensor"}, None),
    "fp8 by output": ("gemma2", "float-quantized", FP8, FP8 | {"strategy": "token", "dynamic": True}),
    "fp8 by matrix": ("llama", "float-quantized", FP8 | {"strategy": "tensor"}, FP8 | {"strategy": "tensor"}),
    "fp8 by block": (
        "deepseek-v3", "float-quantized", FP8 | {"strategy": "block", "block_structure": [8, 16]},
        FP8 | {"strategy": "group", "group_size": 128, "dynamic": True},
    ),
    "naive fp8": ("mixtral", "naive-quantized", FP8, None),
    "experts of 4 bits": ("qwen3-moe", "pack-quantized", W4, None),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_models(model_folder: ModelFolder, tmp_path: Path, name: str) -> None:
    family, kind, weights, inputs = FORMS[name]
    said = settings(kind, group(weights, inputs), ignore=["lm_head", r"re:.*mlp\.gate$"])
    check(quantized_model(model_folder(family), tmp_path, by_the_library(kind, inputs, **weights), said))


@pytest.mark.parametrize("order", ["group", "dynamic"])
def test_act_order(model_folder: ModelFolder, tmp_path: Path, order: str) -> None:
    """Activation order is recognized by either of its names."""
    said = settings("pack-quantized", group(W4 | {"actorder": order}))
    check(quantized_model(model_folder("llama"), tmp_path, lambda weight: words(weight, 4, GROUP, shuffled=True), said))


def test_groups_of_modules_and_a_quantized_head(model_folder: ModelFolder, tmp_path: Path) -> None:
    """Groups have their own formats, ignored modules stay plain; the head is untied, as a tied one has no weights."""
    four, eight = by_the_library("pack-quantized", **W4), by_the_library("float-quantized", **FP8)
    said = settings(
        "mixed-precision",
        group(W4, format="pack-quantized", targets=["Linear"]),
        group(FP8, format="float-quantized", targets=[r"re:.*down_proj", "lm_head", r"re:.*gate_proj"]),
        ignore=[r"re:.*layers\.0\.self_attn\.q_proj", "model.layers.1.self_attn"],
    )
    model = quantized_model(
        model_folder("llama-untied"), tmp_path, four, said, head=True,
        skipped=["layers.0.self_attn.q_proj", "layers.1.self_attn"],
        more={"down_proj": eight, "gate_proj": eight, "lm_head": eight},
    )  # fmt: skip
    check(model)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_w8a8(strategy: str, symmetric: bool) -> None:
    """Inputs are quantized dynamically, even if the checkpoint has a scale or zero point for them."""
    inputs = INPUTS | {"dynamic": False, "strategy": "tensor", "symmetric": symmetric}
    weights = W8 | {"strategy": strategy}
    matrix = by_the_library("int-quantized", inputs, **weights)(torch.randn(32, 64))
    method = CompressedTensors.of_checkpoint(settings("int-quantized", group(weights, inputs)), FORM)
    layer = method.layer(Place("linear", ("model.layers.0.mlp.down_proj",)))
    assert set(matrix.tensors) <= layer.ignored | {spec.name for spec in layer.parameters()}
    scale = matrix.tensors["weight_scale"].expand(32, 1)
    weight = layer.weight({**matrix.tensors, "weight_scale": scale})
    assert isinstance(weight, Int8Weight)
    torch.testing.assert_close(weight.wide(torch.float64), matrix.meant)


@pytest.mark.parametrize(
    ("inputs", "weights", "kind"),
    [
        (INPUTS, W8, Int8Weight),
        (None, W8, CodedWeight),
        (INPUTS, W8 | {"symmetric": False}, CodedWeight),
        (INPUTS, W8 | {"strategy": "group", "group_size": 16}, CodedWeight),
        (INPUTS, W4, CodedWeight),
    ],
)
def test_inputs_are_quantized_where_one_scale_is_for_all(
    inputs: dict[str, Any] | None, weights: dict[str, Any], kind: type
) -> None:
    matrix = by_the_library("int-quantized", inputs, **weights)(torch.randn(32, 64))
    method = CompressedTensors.of_checkpoint(settings("int-quantized", group(weights, inputs)), FORM)
    weight = method.layer(Place("linear", ("model.layers.0.mlp.down_proj",))).weight(matrix.tensors)
    assert isinstance(weight, kind)
    assert not isinstance(weight, torch.Tensor)
    torch.testing.assert_close(weight.wide(torch.float64), matrix.meant, atol=1e-6, rtol=1e-6)


PLACES: dict[str, tuple[PlaceKind, tuple[str, ...]]] = {
    "linear": ("linear", ("model.layers.1.mlp.gate_proj", "model.layers.1.mlp.gate_up_proj")),
    "router": ("router", ("model.layers.1.mlp.gate",)),
    "experts": ("experts", ("model.layers.1.mlp.experts.0.gate_proj",)),
    "head": ("head", ("lm_head",)),
    "embedding": ("embedding", ("model.embed_tokens",)),
}


@pytest.mark.parametrize(
    ("targets", "ignore", "quantized"),
    [
        (["Linear"], [], {"linear", "experts", "head"}),
        (["re:.*mlp.gate$"], [], {"router"}),
        (["Linear"], ["lm_head", "re:.*gate$"], {"linear", "experts"}),
        (["Linear"], ["model.layers.1.mlp"], {"head"}),
        (["Linear"], ["Linear"], set()),
        (["re:.*gate_proj"], [], {"linear", "experts"}),
        (["re:.*gate_up_proj"], [], {"linear"}),
        (["model.layers.1.mlp.gate_proj"], [], {"linear"}),
        (["Linear", "Embedding"], ["re:.*mlp"], {"head", "embedding"}),
    ],
)
def test_which_modules_are_quantized(targets: list[str], ignore: list[str], quantized: set[str]) -> None:
    said = settings("pack-quantized", group(W4, targets=targets), ignore=ignore)
    method = CompressedTensors.of_checkpoint(said, FORM)
    found = {name for name, (kind, names) in PLACES.items() if method.layer(Place(kind, names)) != method.plain}
    assert found == quantized


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (settings("marlin-24", group(W4)), r"format is 'marlin-24'.*pack-quantized.*\(config_groups.group_0\)"),
        (settings("pack-quantized", group(W4 | {"num_bits": 5})), "num_bits is 5"),
        (settings("pack-quantized", group(W4 | {"strategy": "attn_head"})), "strategy is 'attn_head'"),
        (settings("pack-quantized", group(W4 | {"group_size": None})), "group_size is missing"),
        (settings("pack-quantized", group(W4 | {"group_size": -3})), "group_size is -3"),
        (settings("pack-quantized", group(FP8)), "format is 'pack-quantized'"),
        (settings("float-quantized", group(FP8 | {"num_bits": 4})), "num_bits is 4"),
        (settings("float-quantized", group(FP8 | {"strategy": "block"})), "block_structure is None"),
        (settings("pack-quantized", group(W4, targets=["re:("])), r"'re:\(' is not a valid pattern"),
        (settings("pack-quantized", group(W4), ignore="lm_head"), "ignore is 'lm_head'; expected a list"),
        (settings("pack-quantized", group(W4), sparsity_config={"format": "sparse-24-bitmask"}), "sparse weights"),
        (settings("pack-quantized", group(W4), transform_config={"config_groups": {"R1": {}}}), "transform_config"),
        (settings("pack-quantized", group(W4), sparsity_config="x"), "sparsity_config is 'x'; expected a JSON object"),
        (
            settings("pack-quantized", group(W4), transform_config=[1]),
            r"transform_config is \[1\]; expected a JSON object",
        ),
        (settings("pack-quantized", group([1])), r"weights is \[1\]; expected a JSON object"),
        (settings("pack-quantized") | {"config_groups": None}, "config_groups is None"),
    ],
)
def test_wrong_settings(said: dict[str, Any], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        CompressedTensors.of_checkpoint(said, FORM)
