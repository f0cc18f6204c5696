"""Matrices and models in the formats of quantized checkpoints, by the definitions of these formats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from engine_svc.ops.grids import NF4

# The place in a word, the lowest first, where AWQ has the code of each of eight outputs.
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Matrix:
    """The tensors of a checkpoint's matrix, and the values that they stand for: [outputs, inputs]."""

    tensors: Mapping[str, torch.Tensor]
    meant: torch.Tensor


@dataclass(frozen=True)
class Rounded:
    """A weight as integers: (codes - zeros) * scale."""

    codes: torch.Tensor  # [outputs, inputs]
    zeros: torch.Tensor  # [outputs, groups]
    scale: torch.Tensor  # float16 [outputs, groups]
    places: torch.Tensor  # [inputs], the group of each input

    @property
    def meant(self) -> torch.Tensor:
        return (self.codes - self.zeros[:, self.places]).double() * self.scale[:, self.places].double()


def rounded(weight: torch.Tensor, bits: int, group: int, *, symmetric: bool = False, shuffled: bool = False) -> Rounded:
    """Quantizes each group's values linearly between the smallest and the largest."""
    inputs = weight.shape[1]
    places = torch.arange(inputs) // group
    if shuffled:
        places = places[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
    codes, zeros, scales, most = torch.empty(weight.shape, dtype=torch.long), [], [], 2**bits - 1
    for index in range(int(places.max()) + 1):
        part = weight[:, places == index].float()
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if symmetric:
            low, high = -torch.maximum(-low, high), torch.maximum(-low, high)
        scale = ((high - low) / most).half()
        zero = torch.full_like(low, 2 ** (bits - 1)) if symmetric else (-low / scale.float()).round()
        codes[:, places == index] = ((part / scale.float()[:, None]).round() + zero[:, None]).clamp(0, most).long()
        zeros.append(zero.long())
        scales.append(scale)
    return Rounded(codes, torch.stack(zeros, 1), torch.stack(scales, 1), places)


def packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, columns] → int32 [rows, words]: a row's codes one after the other, from the lowest bit on."""
    stream = (codes[..., None] >> torch.arange(bits) & 1).flatten(1).unflatten(1, (-1, 32))
    words = (stream << torch.arange(32)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int().contiguous()


def gptq(
    weight: torch.Tensor, bits: int = 4, group: int = 16, *, less: int = 1, symmetric: bool = False,
    shuffled: bool = False,
) -> Matrix:  # fmt: skip
    """A matrix in GPTQ's format.

    Args:
        less: how much smaller than a zero point the stored value is.
    """
    found = rounded(weight, bits, group, symmetric=symmetric, shuffled=shuffled)
    tensors = {
        "qweight": packed(found.codes, bits).t().contiguous(),
        "qzeros": packed((found.zeros - less).t() % 2**bits, bits),
        "scales": found.scale.t().contiguous(),
        "g_idx": found.places.int(),
    }
    return Matrix(tensors, found.meant)


def awq(weight: torch.Tensor, group: int = 16) -> Matrix:
    found = rounded(weight, 4, group)
    tensors = {
        "qweight": packed(_interleaved(found.codes.t()), 4), "qzeros": packed(_interleaved(found.zeros.t()), 4),
        "scales": found.scale.t().contiguous(),
    }  # fmt: skip
    return Matrix(tensors, found.meant)


def _interleaved(codes: torch.Tensor) -> torch.Tensor:
    """[rows, outputs], with each eight outputs in AWQ's order."""
    return codes.unflatten(1, (-1, 8))[..., AWQ_PLACES].flatten(1)


def nf4(weight: torch.Tensor) -> Matrix:
    """A matrix in bitsandbytes' NF4 grid, in the form in which its method passes tensors on: with runs of 32 inputs."""
    grid = torch.tensor(NF4.values)
    greatest = weight.unflatten(1, (-1, 32)).abs().amax(-1)
    scale = greatest.repeat_interleave(32, 1)
    codes = (weight[..., None] / scale[..., None] - grid).abs().argmin(-1).to(torch.uint8)
    tensors = {"weight": codes[:, ::2] << 4 | codes[:, 1::2], "absmax": greatest}
    return Matrix(tensors, grid[codes.long()].double() * scale.double())


def llm_int8(weight: torch.Tensor) -> Matrix:
    greatest = weight.abs().amax(1)
    values = (weight * (127 / greatest)[:, None]).round().to(torch.int8)
    return Matrix({"weight": values, "SCB": greatest}, values.double() * (greatest / 127).double()[:, None])


def torchao_bytes(weight: torch.Tensor, group: int | None = None) -> Matrix:
    size = group or weight.shape[1]
    groups = weight.unflatten(1, (-1, size))
    scale = groups.abs().amax(-1) / 127.5
    values = (groups * (1 / scale[..., None])).round().clamp(-128, 127).to(torch.int8)
    tensors = {
        "_weight_qdata": values.flatten(1), "_weight_scale": scale,
        "_weight_zero_point": torch.zeros(scale.shape, dtype=torch.int8),
    }  # fmt: skip
    return Matrix(tensors, (values.double() * scale[..., None].double()).flatten(1))


def torchao_floats(weight: torch.Tensor) -> Matrix:
    scale = weight.abs().amax(1, keepdim=True) / 448
    values = (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return Matrix({"_weight_qdata": values, "_weight_scale": scale}, values.double() * scale.double())


def torchao_halves(weight: torch.Tensor, group: int) -> Matrix:
    groups = weight.unflatten(1, (-1, group))
    least = groups.amin(-1)
    scale = (groups.amax(-1) - least).clamp(min=1e-6) / 15
    values = ((groups - least[..., None]) / scale[..., None]).round().clamp(0, 15).to(torch.int8).flatten(1) - 8
    zero = least + 8 * scale
    tensors = {
        "_weight_qdata": values[:, ::2] & 15 | values[:, 1::2] << 4,
        "_weight_scale": scale.t().contiguous(), "_weight_zero_point": zero.t().contiguous(),
    }  # fmt: skip
    spread = [each.repeat_interleave(group, 1).double() for each in (scale, zero)]
    return Matrix(tensors, values.double() * spread[0] + spread[1])


def hqq(weight: torch.Tensor, bits: int, group: int) -> Matrix:
    """A matrix in HQQ's format, but simply rounded to the nearest, without HQQ's optimized zero points."""
    groups = weight.reshape(-1, group)
    low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    scale = ((high - low) / (2**bits - 1)).clamp(min=1e-6)
    zero = -low / scale
    codes = (groups / scale + zero).round().clamp(0, 2**bits - 1)
    tensors = {
        "W_q": _hqq_words(codes.int(), bits), "scale": scale, "zero": zero, "shape": torch.tensor(weight.shape),
        "nbits": torch.tensor(bits, dtype=torch.int32), "packing": torch.tensor(list(b"4bit_u8"), dtype=torch.uint8),
    }  # fmt: skip
    return Matrix(tensors, ((codes.double() - zero.double()) * scale.double()).view(weight.shape))


def _hqq_words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Packs codes: the first part of all rows in the highest bits, and so on; ten codes of three bits in a word."""
    parts = 10 if bits == 3 else 8 // bits
    padded = torch.nn.functional.pad(codes, (0, 0, 0, -len(codes) % parts)).chunk(parts)
    words = sum((part << bits * (parts - 1 - index) for index, part in enumerate(padded)), torch.zeros_like(padded[0]))
    return words if bits == 3 else words.to(torch.uint8)


@dataclass(frozen=True)
class Quantized:
    """A quantized checkpoint of a model, and a checkpoint with the dequantized weights."""

    packed: Path
    plain: Path


Convert = Callable[[torch.Tensor], Matrix]


def quantized_model(
    original: Path, folder: Path, convert: Convert, settings: Mapping[str, Any], *, skipped: Collection[str] = (),
    head: bool = False, more: Mapping[str, Convert] = {},
) -> Quantized:  # fmt: skip
    """Quantizes the linear layers of a model.

    Args:
        skipped: modules whose names contain one of these stay as they are, like routers.
        head: whether lm_head is quantized too.
        more: conversions of further modules, by the ends of their names.
    """
    found = Quantized(folder / "packed", folder / "plain")
    tensors, packed_tensors = load_file(original / "model.safetensors"), {}
    for name, weight in list(tensors.items()):
        module, _, kind = name.rpartition(".")
        chosen = next((each for end, each in more.items() if module.endswith(end)), convert)
        is_linear = (
            kind == "weight" and weight.dim() == 2 and not module.endswith(("embed_tokens", "word_embeddings", "gate"))
        )
        if not is_linear or (module == "lm_head" and not head) or any(each in module for each in skipped):
            packed_tensors[name] = weight
            continue
        matrix = chosen(weight)
        packed_tensors |= {f"{module}.{each}": tensor for each, tensor in matrix.tensors.items()}
        tensors[name] = matrix.meant.float().contiguous()
    for target, held in ((found.plain, tensors), (found.packed, packed_tensors)):
        shutil.copytree(original, target)
        save_file(held, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((original / "config.json").read_text()) | {"quantization_config": dict(settings)}
    (found.packed / "config.json").write_text(json.dumps(config))
    return found
