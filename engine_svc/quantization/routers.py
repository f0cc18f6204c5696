"""Routers that a checkpoint has quantized: AutoRound and GPTQModel do so in some. Here, they are not."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine_svc.ops.weights import wide
from engine_svc.quantization.base import LayerMethod
from engine_svc.quantization.source import HeldTensor, Tensors
from quire.errors import StartupError

# Routers and gates are computed in 16 bits, even if they are quantized in the checkpoint.
ROUTERS = ("gate", "shared_expert_gate", "router")
_KINDS = ("qweight", "qzeros", "scales", "g_idx")


def with_plain_routers(tensors: Tensors, form: Callable[[str], LayerMethod], dtype: torch.dtype) -> Tensors:
    """The tensors with routers' weights, at the end, in place of those that they are packed in.

    Args:
        form: router's name in the checkpoint → form of its weight.

    Raises:
        StartupError: a router is not packed in this form.
    """
    routers: dict[str, dict[str, torch.Tensor]] = {}
    for name, source in tensors:
        module, _, kind = name.rpartition(".")
        if kind in _KINDS and module.rpartition(".")[2] in ROUTERS:
            routers.setdefault(module, {})[kind] = source[...].clone()
        else:
            yield name, source
    for module, found in routers.items():
        method = form(module)
        try:
            weight = method.weight({spec.name: found[spec.name].to(spec.dtype) for spec in method.parameters()})
        except KeyError as error:
            raise StartupError(f"The checkpoint's {module} lacks {error}, as it is quantized.") from error
        except (ValueError, RuntimeError, IndexError) as error:
            raise StartupError(f"The checkpoint's {module}: {error}") from error
        yield f"{module}.weight", HeldTensor(wide(weight, dtype))
