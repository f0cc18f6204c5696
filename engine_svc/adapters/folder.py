"""An adapter's folder, as written by the PEFT library: defines, for both sides, what is supported.

The control side reads the configuration and the header, which tell whether the adapter can be served. The compute side
reads the bytes of each part from the places in the header.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from engine_svc.adapters.config import CONFIG_FILE, HEAD, WHOLE_MODULES, AdapterConfig, read_config
from engine_svc.adapters.header import TensorPlace, broken, read_header
from engine_svc.adapters.targets import TargetModules
from quire.options.lora import TARGETS_FLAG

logger = logging.getLogger(__name__)

WEIGHTS_FILE = "adapter_model.safetensors"
_PICKLED_FILE = "adapter_model.bin"
_PREFIX = "base_model.model."
# The ends of the tensors' names: the part at the inputs (A), and the part at the outputs (B).
_LINEAR = (".lora_A.weight", ".lora_B.weight")
_EMBEDDING = (".lora_embedding_A", ".lora_embedding_B")
# PEFT saves the base's own embedding and head along with their low-rank parts.
_BASE = ".base_layer.weight"
_WHOLE, _BIAS = ".weight", ".bias"

# (outputs, inputs) of each module that an adapter may target, by its name in the base's checkpoint. For an embedding,
# (row size, vocabulary).
ModuleShapes = Mapping[str, tuple[int, int]]
_Found = TypeVar("_Found")
_ALL = TargetModules()


@dataclass(frozen=True)
class LowRankPart:
    """The low-rank part that an adapter adds to a module: outputs += scale * (inputs Aᵀ) Bᵀ."""

    a: TensorPlace  # [rank, inputs]
    b: TensorPlace  # [outputs, rank]
    scale: float
    is_embedding: bool  # inputs are token ids: A has a column per token of the vocabulary

    @property
    def rank(self) -> int:
        """The number of rows of A."""
        return self.a.shape[0]


@dataclass(frozen=True)
class AdapterFolder:
    """An adapter that can be served, judging by its configuration and its tensors' names and shapes."""

    path: Path
    base_model_name: str
    parts: Mapping[str, LowRankPart]  # by the module's name in the base's checkpoint
    # Modules with whole weights [vocabulary, hidden size] that replace the base's.
    whole: Mapping[str, TensorPlace] = field(default_factory=dict)
    unchanged: Mapping[str, TensorPlace] = field(default_factory=dict)  # copies of the base's own, not read
    biases: Mapping[str, TensorPlace] = field(default_factory=dict)  # of modules of a pooled model's head

    @property
    def weights_file(self) -> Path:
        """The file that all places refer to."""
        return self.path / WEIGHTS_FILE

    @property
    def rank(self) -> int:
        """The greatest rank of its parts; 0 if it only has whole weights."""
        return max((part.rank for part in self.parts.values()), default=0)


def read_folder(
    path: Path, max_rank: int, modules: ModuleShapes, targets: TargetModules = _ALL, *, is_part: bool = False,
    heads: Collection[str] = (),
) -> AdapterFolder:  # fmt: skip
    """Reads and checks an adapter's folder.

    Args:
        max_rank: --max-lora-rank.
        modules: modules of the base.
        targets: those of them that adapters may change; parts of others are left out.
        heads: those of the modules that stand on top of a pooled model, of which it may have whole weights and biases.
        is_part: `modules` may be only some of the base's; parts of other modules are left out instead of refused.

    Raises:
        InvalidRequest: the adapter cannot be served; names the file and tensor, and what was expected and found.
    """
    if not os.path.isdir(path):  # noqa: PTH112  (unlike Path.is_dir, False for names that are too long)
        raise broken(f"{path} is not a folder; an adapter is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}.")
    config = read_config(path)
    if not (path / WEIGHTS_FILE).exists() and (path / _PICKLED_FILE).exists():
        raise broken(
            f"{path} has its weights as {_PICKLED_FILE}, which could run code when it is read. Save it with PEFT and "
            f"safe_serialization=True, which writes {WEIGHTS_FILE}."
        )
    folder = _sort(path, config, read_header(path / WEIGHTS_FILE), heads)
    if targets.ends:
        folder = _targeted(targets, folder)
    if is_part:
        folder = _only(lambda module: module in modules, folder)
    for module, part in folder.parts.items():
        _check_rank(folder, config, module, part, max_rank)
    _check_modules(folder, modules, heads)
    return folder


def _targeted(targets: TargetModules, folder: AdapterFolder) -> AdapterFolder:
    left, names = _only(targets.have, folder), " ".join(targets.ends)
    if not left.parts and not left.whole:
        raise broken(f"{folder.weights_file} changes none of the modules that {TARGETS_FLAG} allows: {names}.")
    if ignored := {name.rpartition(".")[2] for name in {*folder.parts, *folder.whole} if not targets.have(name)}:
        others = ", ".join(sorted(ignored))
        logger.warning("%s: changes of %s are left out, because of %s %s", folder.path, others, TARGETS_FLAG, names)
    return left


def _only(wanted: Callable[[str], bool], folder: AdapterFolder) -> AdapterFolder:
    def own(found: Mapping[str, _Found]) -> dict[str, _Found]:
        return {module: each for module, each in found.items() if wanted(module)}

    return replace(
        folder, parts=own(folder.parts), whole=own(folder.whole), unchanged=own(folder.unchanged),
        biases=own(folder.biases),
    )  # fmt: skip


def revision_of(path: Path) -> str:
    """Computes a hash of an adapter's contents, 64 hexadecimal digits. Reads all of its weights.

    Raises:
        InvalidRequest: a file cannot be read.
    """
    whole = hashlib.sha256()
    try:
        for name in (CONFIG_FILE, WEIGHTS_FILE):
            with (path / name).open("rb") as opened:
                whole.update(hashlib.file_digest(opened, "sha256").digest())
    except OSError as error:
        raise broken(f"{path} cannot be read: {error}.") from error
    return whole.hexdigest()


def _sort(
    path: Path, config: AdapterConfig, tensors: Mapping[str, TensorPlace], heads: Collection[str]
) -> AdapterFolder:
    """Sorts the tensors into low-rank parts, whole weights and biases, and unchanged copies."""
    pairs: dict[tuple[str, bool], dict[int, TensorPlace]] = {}
    kept: dict[str, dict[str, TensorPlace]] = {_BASE: {}, _WHOLE: {}, _BIAS: {}}
    for name, place in tensors.items():
        if not name.startswith(_PREFIX):
            raise _unknown(path, name, f"names must begin with {_PREFIX}")
        module = name.removeprefix(_PREFIX)
        ends = ((end, side, ends is _EMBEDDING) for ends in (_LINEAR, _EMBEDDING) for side, end in enumerate(ends))
        for end, side, is_embedding in ends:
            if module.endswith(end):
                pairs.setdefault((module.removesuffix(end), is_embedding), {})[side] = place
                break
        else:
            _keep_whole(path, module, place, kept, heads)
    parts = {module: _part(path, config, module, pair, kind) for (module, kind), pair in pairs.items()}
    if len(parts) < len(pairs):
        raise broken(f"{path / WEIGHTS_FILE} has tensors of a linear layer and of an embedding for the same module.")
    if not parts and not kept[_WHOLE]:
        raise broken(f"{path / WEIGHTS_FILE} has no tensors: the adapter changes nothing.")
    return AdapterFolder(path, config.base_model_name, parts, kept[_WHOLE], kept[_BASE], kept[_BIAS])


def _keep_whole(
    path: Path, module: str, place: TensorPlace, kept: Mapping[str, dict[str, TensorPlace]], heads: Collection[str]
) -> None:
    """Sorts in a tensor that is no low-rank part.

    Args:
        kept: by the end of a tensor's name, what has been found so far.
    """
    for end, found in kept.items():
        name = module.removesuffix(end)
        is_kept = name in heads or (name.rpartition(".")[2] in WHOLE_MODULES and end != _BIAS)
        if module.endswith(end) and is_kept and len(place.shape) == (1 if end == _BIAS else 2):
            found[name] = place
            return
    names = " and ".join(dict.fromkeys([*WHOLE_MODULES, *(name.rpartition(".")[2] for name in heads)]))
    expected = f"{_LINEAR[0]} and {_LINEAR[1]} of a module, or whole weights of {names}"
    raise _unknown(path, place.name, f"supported are {expected}")


def _unknown(path: Path, name: str, expected: str) -> Exception:
    return broken(f"{path / WEIGHTS_FILE} has a tensor {name[:200]!r}, which is not supported: {expected}.")


def _part(
    path: Path, config: AdapterConfig, module: str, pair: Mapping[int, TensorPlace], is_embedding: bool
) -> LowRankPart:
    file = path / WEIGHTS_FILE
    if len(pair) < 2:
        one = next(iter(pair.values())).name
        raise broken(f"{file} has {one[:200]!r} but not the other tensor of its pair: it is incomplete. Copy it again.")
    a, b = pair[0], pair[1]
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        raise broken(
            f"{file}: {a.name[:200]} of shape {list(a.shape)} and {b.name[:200]} of shape {list(b.shape)} do not "
            "match: expected [rank, inputs] and [outputs, rank]."
        )
    return LowRankPart(a, b, config.scale_of(module), is_embedding)


def _check_rank(folder: AdapterFolder, config: AdapterConfig, module: str, part: LowRankPart, max_rank: int) -> None:
    expected = config.rank_of(module)
    if part.rank != expected:
        raise broken(
            f"{folder.weights_file}: {part.a.name[:200]} has rank {part.rank} (its shape is {list(part.a.shape)}), "
            f"but {CONFIG_FILE} says {expected}. The two files belong to different adapters."
        )
    if part.rank > max_rank:
        raise broken(
            f"{folder.weights_file}: {part.a.name[:200]} has rank {part.rank}, but --max-lora-rank is {max_rank}; "
            f"start the server with --max-lora-rank {part.rank}."
        )


def _check_modules(folder: AdapterFolder, modules: ModuleShapes, heads: Collection[str]) -> None:
    for module, part in folder.parts.items():
        outputs, inputs = _shape_of(folder, module, part.a.name, modules)
        for place, dimension, expected in ((part.a, 1, inputs), (part.b, 0, outputs)):
            if place.shape[dimension] != expected:
                wanted = [part.rank, inputs] if dimension else [outputs, part.rank]
                raise _misfit(folder, place, wanted)
    for module, place in {**folder.whole, **folder.unchanged}.items():
        shape = _shape_of(folder, module, place.name, modules)
        is_embedding = not module.endswith(HEAD) and module not in heads
        wanted = [*(reversed(shape) if is_embedding else shape)]  # rows are the vocabulary, or classes, in all
        if list(place.shape) != wanted:
            raise _misfit(folder, place, wanted)
    for module, place in folder.biases.items():
        outputs, _ = _shape_of(folder, module, place.name, modules)
        if list(place.shape) != [outputs]:
            raise _misfit(folder, place, [outputs])


def _shape_of(folder: AdapterFolder, module: str, tensor: str, modules: ModuleShapes) -> tuple[int, int]:
    if module not in modules:
        raise broken(
            f"{folder.weights_file}: {tensor[:200]} is for the module {module[:200]}, which the model does not have, "
            "or which does not support adapters. The adapter's base model is "
            f"{folder.base_model_name[:200] or 'not named'}."
        )
    return modules[module]


def _misfit(folder: AdapterFolder, place: TensorPlace, expected: list[int]) -> Exception:
    return broken(
        f"{folder.weights_file}: {place.name[:200]} has the shape {list(place.shape)}, but the model needs "
        f"{expected}. The adapter's base model is {folder.base_model_name[:200] or 'not named'}."
    )
