"""Tensor parallelism of a model that runs the Transformers library's code, by the plan that comes with the model.

A plan gives the style in which ranks share each module and parameter. Before the weights are read, parameters become
placeholders for the rank's part, and the library reads no more of a checkpoint than that. Afterwards they are plain
tensors again, and modules communicate through our groups as their style requires.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter, WeightTransform
from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES

from engine_svc.models.transformers_stages import is_elsewhere
from engine_svc.parallel.group import ParallelGroup
from quire.errors import StartupError

Forward = Callable[..., torch.Tensor]
# (module with the rank's part, group, the module's own forward) → its forward among the ranks.
Style = Callable[[Any, ParallelGroup, Forward], Forward]

_KEYS_AND_VALUES = ("k_proj", "v_proj")


class TensorSharing:
    """Shares a model among ranks; one object for each model and rank.

    Order of calls: `begin` before the weights are loaded, `finish` after that.
    """

    def __init__(self, group: ParallelGroup, device: torch.device) -> None:
        self._group, self._device = group, device
        self._rows: dict[str, slice] = {}  # rows to keep of parameters that are read whole

    def begin(self, model: Any) -> None:
        """Reduces parameters to the rank's part.

        Args:
            model: on the meta device.

        Raises:
            StartupError: the model has no plan, or an unsupported one; or its heads cannot be divided among the ranks.
        """
        if not model.config.base_model_tp_plan:
            raise StartupError(
                f"{type(model).__name__} runs with the Transformers library's code, which has no plan for dividing "
                "its layers among ranks (base_model_tp_plan). Leave --tensor-parallel-size out."
            )
        for entry, style in model.tp_plan.items():
            if style not in _STYLES:
                raise StartupError(
                    f"{type(model).__name__}: the Transformers library divides {entry} among ranks by {style!r}, "
                    "which is not supported. Leave --tensor-parallel-size out."
                )
        assert self._group.process_group is not None
        mesh = DeviceMesh.from_group(self._group.process_group, self._device.type)
        made_of_others = _made_of_others(get_model_conversion_mapping(model))
        for name, style in _planned(model.tp_plan, [name for name, _ in model.named_parameters()], of_modules=True):
            path, _, parameter = name.rpartition(".")
            rows = self._repeated_head(model, path, style)
            if rows is None and style == "colwise" and f".{name}".endswith(made_of_others):
                share = _share(self._group, len(model.get_parameter(name)))
                rows = slice(self._group.rank * share, (self._group.rank + 1) * share)
            if rows is not None:
                self._rows[name] = rows
            else:
                ALL_PARALLEL_STYLES[style].shard_param(model.get_submodule(path), parameter, mesh)

    def _repeated_head(self, model: Any, path: str, style: str) -> slice | None:
        """The rank's outputs of a projection to keys or values, if there are fewer heads than ranks; else None.

        Raises:
            StartupError: heads cannot be divided among the ranks.
        """
        parent, _, name = path.rpartition(".")
        size = getattr(model.get_submodule(parent), "head_dim", None)
        if name not in (*_KEYS_AND_VALUES, "q_proj") or style != "colwise" or not size:
            return None
        heads, ranks = model.get_submodule(path).out_features // size, self._group.world_size
        if heads % ranks and (name == "q_proj" or ranks % heads):
            raise StartupError(
                f"--tensor-parallel-size {ranks}: {path} has {heads} heads, which cannot be divided evenly."
            )
        first = self._group.rank * heads // ranks * size
        return slice(first, first + size) if heads < ranks else None

    def finish(self, model: Any) -> None:
        """Makes parameters plain tensors again, and modules communicate as their style requires.

        Raises:
            StartupError: the checkpoint has parameters in a form from which a rank's part cannot be read.
        """
        _check_conversions(model)
        made: dict[int, torch.nn.Parameter] = {}  # modules may share a parameter
        for path, module in model.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                own = parameter.to_local() if isinstance(parameter, DTensor) else parameter.data
                own = own[self._rows.get(f"{path}.{name}", slice(None))]
                plain = made.setdefault(id(parameter), torch.nn.Parameter(own, requires_grad=False))
                module.register_parameter(name, plain)
        for path, style in _planned(model.tp_plan, [path for path, _ in model.named_modules()], of_modules=False):
            module = model.get_submodule(path)
            if not is_elsewhere(module):
                module.forward = _STYLES[style](module, self._group, module.forward)


def _made_of_others(conversions: Iterable[WeightTransform]) -> tuple[str, ...]:
    """Suffixes of the names of parameters that the library converts from differently arranged checkpoint tensors.

    The library would cut out a rank's part before the conversion. This is right when experts are merged, but wrong for
    these parameters.
    """
    return tuple(
        f".{target.removeprefix('.')}"
        for conversion in conversions
        if isinstance(conversion, WeightConverter) and not _puts_together(conversion)
        for target in conversion.target_patterns
    )


def _puts_together(conversion: WeightConverter) -> bool:
    kinds = {type(operation) for operation in conversion.operations}
    return MergeModulelist in kinds and kinds <= {MergeModulelist, Concatenate}


def _check_conversions(model: Any) -> None:
    """Checks that no part of a parameter was cut out before its conversion.

    Raises:
        StartupError: one was.
    """
    cut = [f".{name}" for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)]
    known = [f".{name}" for name, _ in model.named_parameters()]
    for conversion in model._weight_conversions:
        names = _made_of_others([conversion])
        if not names:
            continue
        if any(name.endswith(names) for name in cut) or not any(name.endswith(names) for name in known):
            raise StartupError(
                f"{type(model).__name__}: the checkpoint has {', '.join(conversion.source_patterns)} in a form that "
                "ranks cannot read in parts. Leave --tensor-parallel-size out."
            )


def _planned(plan: Mapping[str, str], names: list[str], of_modules: bool) -> Iterator[tuple[str, str]]:
    """The names that a plan contains, with their styles; the plan has `*` in place of layer numbers.

    Args:
        of_modules: the names are of parameters, and the plan may name their modules instead.
    """
    for name in names:
        generic = re.sub(r"\.\d+(?=\.|$)", ".*", name)
        style = plan.get(generic)
        if style is None and of_modules:
            style = plan.get(generic.rpartition(".")[0])
        if style is not None:
            yield name, style


def _alone(module: Any, group: ParallelGroup, forward: Forward) -> Forward:
    """Runs without communication."""
    return forward


def _share(group: ParallelGroup, size: int) -> int:
    """Number of features on each rank; the last ranks may have fewer."""
    return -(-size // group.world_size)


def _gathered(group: ParallelGroup, mine: torch.Tensor, size: int) -> torch.Tensor:
    """Gathers all ranks' features: [..., size]."""
    return group.all_gather_last(F.pad(mine, (0, _share(group, size) - mine.shape[-1])))[..., :size]


def _gathers_outputs(module: Any, group: ParallelGroup, forward: Forward) -> Forward:
    return lambda hidden: _gathered(group, forward(hidden), module.out_features)


def _gathers_embeddings(module: Any, group: ParallelGroup, forward: Forward) -> Forward:
    return lambda token_ids: _gathered(group, forward(token_ids), module.embedding_dim)


def _sums(module: Any, group: ParallelGroup, forward: Forward) -> Forward:
    return lambda *given, **named: group.all_reduce(forward(*given, **named))


def _sums_products(module: Any, group: ParallelGroup, forward: Forward) -> Forward:
    """Sums the ranks' products; a bias is added once, to the sum."""
    bias, module.bias = module.bias, None

    def run(hidden: torch.Tensor) -> torch.Tensor:
        total = group.all_reduce(forward(hidden))
        return total if bias is None else total + bias

    return run


def _splits_inputs(module: Any, group: ParallelGroup, forward: Forward) -> Forward:
    share = _share(group, module.in_features)
    first, run = group.rank * share, _sums_products(module, group, forward)
    return lambda hidden: run(hidden[..., first : first + share])


def _looks_up_own(module: Any, group: ParallelGroup, forward: Forward) -> Forward:
    """Looks up embeddings, of which each rank has a range of the vocabulary."""
    first, count = group.rank * _share(group, module.num_embeddings), len(module.weight)
    module.padding_idx = None  # it may be on another rank, and is only for training

    def run(token_ids: torch.Tensor) -> torch.Tensor:
        local = token_ids - first
        absent = (local < 0) | (local >= count)
        return group.all_reduce(forward(local.masked_fill(absent, 0)).masked_fill_(absent[..., None], 0))

    return run


def _divides(module: Any, group: ParallelGroup, forward: Forward) -> Forward:
    """Divides the input by the number of ranks, because all ranks have the same and their outputs are summed."""
    return lambda hidden, *given, **named: forward(hidden / group.world_size, *given, **named)


_STYLES: Mapping[str, Style] = {
    "colwise": _alone, "packed_colwise": _alone, "packed_rowwise": _alone, "local_params": _alone,
    "replicate": _alone, "replicated_with_grad_allreduce": _alone, "mla_kv_a_proj": _alone,
    "colwise_rep": _gathers_outputs, "colwise_gather_output": _gathers_outputs,
    "rowwise": _sums_products, "rowwise_rep": _splits_inputs, "rowwise_split_input": _splits_inputs,
    "embedding_rowwise": _looks_up_own, "embedding_colwise": _gathers_embeddings,
    "all_reduce": _sums, "moe_tp_experts": _sums, "moe_identity_expert": _divides,
}  # fmt: skip
