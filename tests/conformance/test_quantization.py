"""The contract of every quantization method, also over ranks. A new method needs a checkpoint in its format below."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gguf
import pytest
import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.experts import Experts, ExpertsShape
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear, even_parts
from engine_svc.layers.parameter import LoadedParameter
from engine_svc.layers.split import Part
from engine_svc.ops.base import ExpertsForm
from engine_svc.ops.grids import INT4
from engine_svc.ops.weights import CodedWeight, Weight
from engine_svc.parallel.group import ParallelGroup, ParallelGroups
from engine_svc.parallel.layout import ParallelLayout
from engine_svc.quantization.base import (
    INPUTS,
    OUTPUTS,
    Axis,
    LayerMethod,
    ModelForm,
    Parameters,
    ParameterSpec,
    Place,
    QuantizationMethod,
)  # fmt: skip
from engine_svc.quantization.registry import create_method
from engine_svc.quantization.unquantized import PlainLayer
from tests.support.for_each import for_each
from tests.support.native import needs_native
from tests.support.ops import experts_by_definition, make_ops
from tests.support.quantized import (
    Matrix,
    awq,
    gptq,
    llm_int8,
    nf4,
    torchao_bytes,
    torchao_floats,
    torchao_halves,
)
from tests.support.quantized_floats import float4, float8, int8, words

Q8_0 = gguf.GGMLQuantizationType.Q8_0
CPU = torch.device("cpu")
INPUT, OUTPUT, INNER, EXPERTS = 64, 96, 64, 3
GROUP, PACKED = 16, 8  # of GroupsOfFourBits
IGNORED = ("g_idx", "input_scale", "input_scale_ub", "weight_shape")  # tensors that some methods do not read
PLACE = Place("linear", ("model.layers.0.mlp.down_proj",))
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2}


@dataclass(frozen=True)
class GroupsOfFourBits(QuantizationMethod, LayerMethod):
    """Holds weights as AWQ does plus a scale of the whole matrix: layouts that the contract has to allow.

    Each int32 holds eight outputs; there is a scale and a zero point for each output and each group of inputs.
    """

    def layer(self, place: Place) -> LayerMethod:
        return self

    def parameters(self) -> tuple[ParameterSpec, ...]:
        packed, grouped = Axis("outputs", features=PACKED), Axis("inputs", features=GROUP)
        return (
            ParameterSpec("qweight", torch.int32, (INPUTS, packed)),
            ParameterSpec("qzeros", torch.int32, (grouped, packed)),
            ParameterSpec("scales", torch.float32, (grouped, OUTPUTS)),
            ParameterSpec("weight_scale", torch.float32, (OUTPUTS,), is_scalar=True),
            ParameterSpec("factor", torch.float32, (OUTPUTS,), default=1.0),
        )

    def weight(self, parameters: Parameters) -> Weight:
        zeros = unpack(parameters["qzeros"]).mT.float()
        scale = parameters["scales"].mT * (parameters["weight_scale"] * parameters["factor"])[..., None]
        codes = unpack(parameters["qweight"]).mT.to(torch.uint8)
        return CodedWeight(INT4, codes, scale, (8 - zeros) * scale, GROUP)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Unpacks int32 [rows, columns] into [rows, 8 * columns] values of 4 bits."""
    return (packed[..., None] >> torch.arange(0, 32, 4) & 15).flatten(-2)


def plain(outputs: int, inputs: int, seed: int, dtype: torch.dtype) -> Matrix:
    weight = random_weight(outputs, inputs, seed).to(dtype)
    return Matrix({"weight": weight}, weight.double())


def random_weight(outputs: int, inputs: int, seed: int) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) / inputs**0.5


def four_bits(outputs: int, inputs: int, seed: int, dtype: torch.dtype) -> Matrix:
    torch.manual_seed(seed)
    qweight = torch.randint(-(2**31), 2**31 - 1, (inputs, outputs // PACKED), dtype=torch.int32)
    qzeros = torch.randint(-(2**31), 2**31 - 1, (inputs // GROUP, outputs // PACKED), dtype=torch.int32)
    scales, whole = torch.rand(inputs // GROUP, outputs) / 8, torch.tensor(0.25 + seed % 7)
    steps = unpack(qweight) - unpack(qzeros).repeat_interleave(GROUP, 0)
    meant = (steps * scales.repeat_interleave(GROUP, 0) * whole).t().to(dtype).double()
    return Matrix({"qweight": qweight, "qzeros": qzeros, "scales": scales, "weight_scale": whole}, meant)


def blocks(weight: torch.Tensor) -> Matrix:
    packed = gguf.quantize(weight.float().numpy(), Q8_0)
    return Matrix({"weight": torch.from_numpy(packed)}, torch.from_numpy(gguf.dequantize(packed, Q8_0)))


@dataclass(frozen=True)
class Form:
    """A checkpoint format that a method reads, and the tolerance between its products and the exact weights."""

    matrix: Callable[[int, int, int, torch.dtype], Matrix]
    name: str | None = None  # value of --quantization, for checkpoints of 16 or 32 bits
    settings: Mapping[str, Any] | None = None  # content of quantization_config
    tolerance: float = 0.0


def converted(
    convert: Callable[..., Matrix], options: Mapping[str, Any], tolerance: float = 0.0, **settings: Any
) -> Form:
    """Returns a form whose weights are made by a conversion.

    Args:
        options: keyword arguments of the conversion.
        settings: the checkpoint's quantization settings.
    """

    def matrix(outputs: int, inputs: int, seed: int, dtype: torch.dtype) -> Matrix:
        found = convert(random_weight(outputs, inputs, seed), **options)
        return Matrix(found.tensors, found.meant.to(dtype).double())

    return Form(matrix, settings=settings, tolerance=tolerance)


class Every(dict[str, str]):
    """A mapping with the same value for every name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return "Q8_0"


def compressed(
    convert: Callable[..., Matrix], options: Mapping[str, Any], kind: str, tolerance: float = 0.0,
    inputs: Mapping[str, Any] | None = None, **weights: Any,
) -> Form:  # fmt: skip
    """Returns a form of compressed-tensors; the keyword arguments are the settings of its weights."""
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}
    return converted(
        convert, options, tolerance, quant_method="compressed-tensors", format=kind, config_groups=groups, ignore=[]
    )


# By method and variant; those with a name after a comma are only computed by plain operations.
CHECKPOINTS: dict[str, Form] = {
    "unquantized": Form(plain),
    "four bits": Form(four_bits),
    "int8": Form(plain, "int8", tolerance=0.03),
    "int4": Form(plain, "int4", tolerance=0.2),
    "experts_int8": Form(plain, "experts_int8", tolerance=0.02),
    "fp8 on load": Form(plain, "fp8", tolerance=0.06),
    "fp8": converted(float8, {"inputs": "input_scale"}, quant_method="fp8", activation_scheme="static"),
    "fp8, channels": converted(float8, {"block": (1, 1 << 20)}, quant_method="fp8", activation_scheme="dynamic"),
    "fp8, blocks": converted(float8, {"block": (8, GROUP), "scale": "weight_scale_inv"}, quant_method="fp8",
                            activation_scheme="dynamic", weight_block_size=[8, GROUP]),
    "fbgemm_fp8": converted(float8, {"block": (1, 1 << 20), "inputs": "input_scale_ub"}, quant_method="fbgemm_fp8"),
    "modelopt": converted(float8, {"inputs": "input_scale"}, quant_method="modelopt", quant_algo="FP8"),
    "modelopt, channels": converted(float8, {"block": (1, 1 << 20), "flat": True}, quant_method="modelopt",
                                   quantization={"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}),
    "modelopt, nvfp4": converted(float4, {"group": 16, "name": "weight", "factor": "weight_scale_2"},
                                quant_method="modelopt", quant_algo="NVFP4"),
    "quark": converted(float8, {}, quant_method="quark", global_quant_config={
        "weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}),
    "quark, int8": converted(int8, {"flat": True}, 0.03, quant_method="quark", global_quant_config={
        "weight": {"dtype": "int8", "qscheme": "per_channel"}, "input_tensors": {"dtype": "int8"}}),
    "quark, int8 weights": converted(int8, {"whole": True}, quant_method="quark", global_quant_config={
        "weight": {"dtype": "int8", "qscheme": "per_tensor"}}),
    "quark, fp4": converted(float4, {"group": 32, "name": "weight"}, quant_method="quark", global_quant_config={
        "weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}}),
    "compressed-tensors": compressed(words, {"bits": 4, "group": GROUP}, "pack-quantized", num_bits=4,
                                     strategy="group", group_size=GROUP),
    "compressed-tensors, zeros": compressed(words, {"bits": 4, "group": GROUP, "symmetric": False}, "pack-quantized",
                                           num_bits=4, strategy="group", group_size=GROUP, symmetric=False),
    "compressed-tensors, act-order": compressed(
        words, {"bits": 4, "group": GROUP, "symmetric": False, "shuffled": True}, "pack-quantized", num_bits=4,
        strategy="group", group_size=GROUP, symmetric=False, actorder="group"),
    "compressed-tensors, W8A16": compressed(words, {"bits": 8, "group": None}, "pack-quantized", strategy="channel"),
    "compressed-tensors, naive": compressed(int8, {}, "naive-quantized", strategy="channel"),
    "compressed-tensors, W8A8": compressed(int8, {}, "int-quantized", 0.03, {"num_bits": 8, "type": "int"},
                                          strategy="channel"),
    "compressed-tensors, fp8": compressed(float8, {}, "float-quantized", type="float", strategy="tensor"),
    "compressed-tensors, fp8 blocks": compressed(float8, {"block": (8, GROUP)}, "float-quantized", type="float",
                                                strategy="block", block_structure=[8, GROUP]),
    "compressed-tensors, nvfp4": compressed(
        float4, {"group": 16, "name": "weight_packed", "factor": "weight_global_scale", "divides": True},
        "nvfp4-pack-quantized", num_bits=4, type="float", group_size=16, strategy="tensor_group"),
    "compressed-tensors, mxfp4": compressed(float4, {"group": 32, "name": "weight_packed"}, "mxfp4-pack-quantized",
                                           num_bits=4, type="float", group_size=32, strategy="group"),
    "awq": converted(awq, {}, quant_method="awq", bits=4, group_size=GROUP),
    "gptq": converted(gptq, {}, quant_method="gptq", bits=4, group_size=GROUP),
    "gptq 8 bits": converted(gptq, {"bits": 8, "less": 0, "symmetric": True}, quant_method="gptq", bits=8,
                             group_size=GROUP, checkpoint_format="gptq_v2"),
    "bitsandbytes": Form(plain, "bitsandbytes", tolerance=0.2),
    "bitsandbytes nf4": converted(nf4, {}, quant_method="bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "bitsandbytes 8 bits": converted(llm_int8, {}, quant_method="bitsandbytes", load_in_8bit=True),
    "torchao": Form(plain, "torchao", tolerance=0.02),
    "torchao int8": converted(torchao_bytes, {"group": GROUP}, quant_method="torchao", quant_type={
        "_type": "Int8WeightOnlyConfig", "_data": {"group_size": GROUP}}),
    "torchao int4": converted(torchao_halves, {"group": GROUP}, quant_method="torchao", quant_type={
        "_type": "Int4WeightOnlyConfig", "_data": {"group_size": GROUP}}),
    "torchao float8": converted(torchao_floats, {}, quant_method="torchao", quant_type={
        "_type": "Float8WeightOnlyConfig"}),
    "gptq act-order": converted(gptq, {"shuffled": True}, quant_method="gptq", bits=4, group_size=GROUP, desc_act=True),
    "gguf": converted(blocks, {}, quant_method="gguf", types=Every()),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A method with the operations that it runs on."""

    name: str
    ops: str

    def context(self, rank: int = 0, world_size: int = 1) -> LayerContext:
        ops, dtype = make_ops(self.ops)
        form = CHECKPOINTS[self.name]
        if self.name == "four bits":
            method: QuantizationMethod = GroupsOfFourBits()
        else:
            method = create_method(form.name, form.settings, ModelForm(ops, dtype))
        group = ParallelGroup(rank, world_size)
        groups = ParallelGroups(ParallelLayout(tensor=world_size), rank, tensor=group, expert=group)
        return LayerContext(groups, dtype, CPU, ops, method)

    def matrix(self, outputs: int, inputs: int, seed: int) -> Matrix:
        return CHECKPOINTS[self.name].matrix(outputs, inputs, seed, make_ops(self.ops)[1])

    def check(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        """Allows the rounding of each value, plus the overall error of quantizing inputs or weights."""
        error = (found.double() - expected).norm() / expected.norm()
        assert error <= CHECKPOINTS[self.name].tolerance + TOLERANCE[make_ops(self.ops)[1]]


every = pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(name, ops), id=f"{name}-{ops}", marks=[needs_native] if ops == "native" else [])
        for name in CHECKPOINTS
        for ops in (("plain",) if "," in name else ("plain", "native"))
    ],
)


class Slice:
    """A tensor with the interface of a checkpoint's slice."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.tensor[index]


def load(module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], part: str = "") -> None:
    """Loads parameters as loader/weights.py does."""
    held = dict(module.named_parameters())
    for name, tensor in tensors.items():
        alone = [held[each] for each in (f"{part.rpartition('.')[2]}.{name}", name) if each in held]
        found = alone[:1] or [parameter for each, parameter in held.items() if each.endswith(f".{name}")]
        assert found or name in IGNORED
        for parameter in found:
            assert isinstance(parameter, LoadedParameter)
            parameter.load(Slice(tensor), part)
    for name, parameter in held.items():
        if isinstance(parameter, LoadedParameter) and name.rpartition(".")[2] not in tensors:
            parameter.fill_missing()


def nothing_missing(module: torch.nn.Module) -> bool:
    return not any(parameter.missing for parameter in module.parameters() if isinstance(parameter, LoadedParameter))


def normal(*shape: int, dtype: torch.dtype, seed: int = 9) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@every
@for_each("rows", [1, 7, 40])
@for_each("with_bias", [False, True])
def test_products_are_those_of_what_the_weights_mean(case: Case, rows: int, with_bias: bool) -> None:
    context, matrix = case.context(), case.matrix(OUTPUT, INPUT, 1)
    hidden = normal(rows, INPUT, dtype=context.dtype)
    bias = normal(OUTPUT, dtype=context.dtype) if with_bias else None
    layer = ColumnParallelLinear(INPUT, {"": Part(0, OUTPUT, OUTPUT)}, bias=False, context=context)
    load(layer, matrix.tensors)
    weight = context.quantization.layer(PLACE).weight(dict(layer.named_parameters()))
    product = context.ops.matrix(weight, bias)
    expected = hidden.double() @ matrix.meant.T + (0 if bias is None else bias.double())
    assert product(hidden).dtype == context.dtype
    assert product(hidden, wide=True).dtype == torch.float32
    case.check(product(hidden), expected)
    case.check(product(hidden, wide=True), expected)


@every
@pytest.mark.parametrize("world_size", [1, 2])
def test_matrices_side_by_side(case: Case, world_size: int) -> None:
    """Covers two matrices, each with its own scales and tensors, split by outputs over the ranks."""
    gate, up = case.matrix(OUTPUT, INPUT, 1), case.matrix(OUTPUT // 2, INPUT, 5)
    found: dict[str, list[torch.Tensor]] = {"gate": [], "up": []}
    hidden = normal(5, INPUT, dtype=case.context().dtype)
    for rank in range(world_size):
        context = case.context(rank, world_size)
        parts = even_parts(context.groups.tensor, {"gate": OUTPUT, "up": OUTPUT // 2})
        layer = ColumnParallelLinear(INPUT, parts, bias=True, context=context)
        load(layer, {**gate.tensors, "bias": torch.ones(OUTPUT)}, "gate")
        assert not nothing_missing(layer)
        load(layer, {**up.tensors, "bias": torch.zeros(OUTPUT // 2)}, "up")
        assert nothing_missing(layer)
        layer.pack()
        assert not list(layer.parameters())
        output = layer(hidden).split([part.count for part in parts.values()], dim=-1)
        for name, each in zip(parts, output, strict=True):
            found[name].append(each)
    case.check(torch.cat(found["gate"], -1), hidden.double() @ gate.meant.T + 1)
    case.check(torch.cat(found["up"], -1), hidden.double() @ up.meant.T)


@every
@pytest.mark.parametrize("world_size", [1, 2])
def test_matrices_in_one_tensor(case: Case, world_size: int) -> None:
    """One checkpoint tensor that holds both matrices stacked is cut at the boundaries of matrices and ranks."""
    both = case.matrix(2 * OUTPUT, INPUT, 3)
    hidden = normal(5, INPUT, dtype=case.context().dtype)
    found: list[list[torch.Tensor]] = [[], []]
    for rank in range(world_size):
        context = case.context(rank, world_size)
        parts = even_parts(context.groups.tensor, {"gate": OUTPUT, "up": OUTPUT})
        layer = ColumnParallelLinear(INPUT, parts, bias=False, context=context)
        load(layer, both.tensors)
        assert nothing_missing(layer)
        layer.pack()
        for held, each in zip(found, layer(hidden).chunk(2, -1), strict=True):
            held.append(each)
    case.check(torch.cat([*found[0], *found[1]], -1), hidden.double() @ both.meant.T)


@every
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_matrix_split_by_inputs(case: Case, world_size: int) -> None:
    matrix, dtype = case.matrix(OUTPUT, INPUT, 2), case.context().dtype
    hidden = normal(5, INPUT, dtype=dtype)
    total = torch.zeros(5, OUTPUT, dtype=torch.float64)
    for rank, share in enumerate(hidden.chunk(world_size, -1)):
        layer = RowParallelLinear(INPUT, OUTPUT, bias=True, context=case.context(rank, world_size))
        load(layer, {**matrix.tensors, "bias": torch.full((OUTPUT,), 2.0)})
        assert nothing_missing(layer)
        layer.pack()
        total += layer(share).double()
    case.check(total, hidden.double() @ matrix.meant.T + 2)


@every
@pytest.mark.parametrize("world_size", [1, 2])
def test_experts(case: Case, world_size: int) -> None:
    seeds = range(EXPERTS)
    gates, ups = ([case.matrix(INNER, INPUT, 10 * part + seed) for seed in seeds] for part in (1, 2))
    downs = [case.matrix(INPUT, INNER, 30 + seed) for seed in seeds]
    # Small values, so that SiLU does not amplify the method's rounding errors.
    hidden = normal(6, INPUT, dtype=case.context().dtype) / 8
    weights, expert_ids = torch.rand(6, EXPERTS, generator=torch.Generator().manual_seed(4)).topk(2)
    total = torch.zeros(6, INPUT, dtype=torch.float64)
    for rank in range(world_size):
        shape = ExpertsShape(EXPERTS, INPUT, 2, INNER, bias=False)
        layer = Experts(shape, ExpertsForm(), context=case.context(rank, world_size))
        for index in seeds:
            load(layer.get_submodule("gate_up"), gates[index].tensors, f"{index}.gate")
            load(layer.get_submodule("gate_up"), ups[index].tensors, f"{index}.up")
            load(layer.get_submodule("down"), downs[index].tensors, f"{index}.down")
        assert nothing_missing(layer)
        layer.pack()
        assert not list(layer.parameters())
        total += layer(hidden, weights, expert_ids).double()
    gate_up = torch.stack([torch.cat((gate.meant, up.meant)) for gate, up in zip(gates, ups, strict=True)])
    down = torch.stack([each.meant for each in downs])
    expected = experts_by_definition(hidden, weights, expert_ids, gate_up, down)
    case.check(total, expected)


@dataclass(frozen=True)
class OnlyTheFirst(QuantizationMethod):
    """Quantizes only the first of two matrices side by side to four bits."""

    dtype: torch.dtype

    def layer(self, place: Place) -> LayerMethod:
        return GroupsOfFourBits() if place.is_any_of(["gate_proj"]) else PlainLayer(self.dtype)


@pytest.mark.parametrize("world_size", [1, 2])
def test_matrices_side_by_side_in_different_forms(world_size: int) -> None:
    case = Case("unquantized", "plain")
    gate, up = four_bits(OUTPUT, INPUT, 1, torch.float32), plain(OUTPUT, INPUT, 5, torch.float32)
    hidden = normal(5, INPUT, dtype=torch.float32)
    for rank in range(world_size):
        context = replace(case.context(rank, world_size), quantization=OnlyTheFirst(torch.float32))
        parts = even_parts(context.groups.tensor, {"gate": OUTPUT, "up": OUTPUT})
        layer = ColumnParallelLinear(INPUT, parts, bias=True, context=context.at("layers.0.mlp.gate_up_proj"))
        load(layer.get_submodule("gate"), gate.tensors, "gate")
        load(layer.get_submodule("up"), up.tensors, "up")
        for part, bias in (("gate", torch.ones(OUTPUT)), ("up", torch.zeros(OUTPUT))):
            layer.get_parameter("bias").load(Slice(bias), part)
        assert nothing_missing(layer)
        layer.pack()
        for name, each in zip(("gate", "up"), layer(hidden).chunk(2, -1), strict=True):
            meant = (gate if name == "gate" else up).meant.chunk(world_size)[rank]
            case.check(each, hidden.double() @ meant.T + (name == "gate"))


def test_experts_of_different_forms() -> None:
    """Gate and up matrices of different forms cannot share a stack and are dequantized."""
    case, seeds = Case("unquantized", "plain"), range(EXPERTS)
    context = replace(case.context(), quantization=OnlyTheFirst(torch.float32)).at("layers.0.mlp.experts")
    gates = [four_bits(INNER, INPUT, seed, torch.float32) for seed in seeds]
    ups, downs = ([plain(*shape, 10 + seed, torch.float32) for seed in seeds] for shape in
                  ((INNER, INPUT), (INPUT, INNER)))  # fmt: skip
    layer = Experts(ExpertsShape(EXPERTS, INPUT, 2, INNER, bias=False), ExpertsForm(), context=context)
    for index in seeds:
        load(layer.get_submodule("gate_up.gate"), gates[index].tensors, f"{index}.gate")
        load(layer.get_submodule("gate_up.up"), ups[index].tensors, f"{index}.up")
        load(layer.get_submodule("down"), downs[index].tensors, f"{index}.down")
    assert nothing_missing(layer)
    layer.pack()
    hidden = normal(6, INPUT, dtype=torch.float32) / 8
    weights, expert_ids = torch.rand(6, EXPERTS).topk(2)
    gate_up = torch.stack([torch.cat((gate.meant, up.meant)) for gate, up in zip(gates, ups, strict=True)])
    expected = experts_by_definition(hidden, weights, expert_ids, gate_up, torch.stack([each.meant for each in downs]))
    case.check(layer(hidden, weights, expert_ids).double(), expected)


def test_what_would_cut_a_group_is_refused() -> None:
    """Half of 48 inputs is 24, which would cut the second group of 16."""
    context = Case("four bits", "plain").context(1, 2).at("layers.0.mlp.down_proj")
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\.down_proj: .* groups of 16 inputs cannot be split at 24"):
        RowParallelLinear(48, OUTPUT, bias=False, context=context)


def test_a_scale_that_is_several_is_refused() -> None:
    layer = RowParallelLinear(INPUT, OUTPUT, bias=False, context=Case("four bits", "plain").context())
    with pytest.raises(ValueError, match=r"shape \[2\] in the checkpoint, expected \[96\]"):
        load(layer, {"weight_scale": torch.ones(2)})


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("scales", torch.ones(INPUT // GROUP, OUTPUT + 1), r"shape \[4, 97\] in the checkpoint, expected \[4, 96\]"),
        ("scales", torch.ones(OUTPUT), r"shape \[96\] in the checkpoint, expected \[4, 96\]"),
        ("qweight", torch.ones(INPUT, OUTPUT // PACKED), "type float32 in the checkpoint, expected int32"),
        ("scales", torch.ones(4, OUTPUT).to(torch.float8_e4m3fn), "type float8_e4m3fn .* expected float32"),
    ],
)
def test_tensors_of_another_shape_or_type_are_refused(name: str, tensor: torch.Tensor, words: str) -> None:
    layer = RowParallelLinear(INPUT, OUTPUT, bias=False, context=Case("four bits", "plain").context())
    with pytest.raises(ValueError, match=words):
        load(layer, {name: tensor})
