"""`quire save-sharded-state`: writes the parameters of each rank of a model, for `--load-format sharded_state`."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine_svc.layers.parameter import LoadedParameter
from engine_svc.loader.cache_scales import as_tensors
from engine_svc.loader.folder import weights_folder
from engine_svc.loader.formats.base import CheckpointFormat
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.formats.sharded_state import PATTERN, check_shared
from engine_svc.loader.model import build_model
from engine_svc.loader.weights import load_weights
from engine_svc.parallel.group import ParallelGroup, ParallelGroups
from engine_svc.parallel.layout import layout_of
from quire.errors import StartupError
from quire.log import setup_logging
from quire.options.engine import EngineOptions
from quire.options.kernels import KernelOptions
from quire.options.load import LoadOptions
from quire.options.log import LogOptions
from quire.options.model import ModelOptions
from quire.options.model_form import ModelFormOptions
from quire.options.parallel import ParallelOptions
from quire.options.save import SaveOptions

logger = logging.getLogger(__name__)

# Files copied with the weights: the configuration, the tokenizer, chat templates, the license.
_BESIDE = ("*.json", "*.jinja", "*.model", "*.txt", "*.md", "LICENSE*")


def main(
    model: ModelOptions,
    form: ModelFormOptions,
    load: LoadOptions,
    parallel: ParallelOptions,
    save: SaveOptions,
    log: LogOptions,
) -> None:
    """
    Raises:
        StartupError: the model cannot be read, or the folder cannot be written to.
    """
    setup_logging("save", log)
    # Nothing is computed, so torch's operators suffice, which need no compiler.
    kernels = KernelOptions(device="cpu", cpu_kernels="torch")
    options = EngineOptions(form=form, load=load, parallel=parallel, kernels=kernels)
    save_sharded_state(weights_folder(model, load), options, Path(save.output), save.max_file_size)


@torch.inference_mode()
def save_sharded_state(folder: Path, options: EngineOptions, target: Path, max_file_size: int) -> None:
    """Writes the files of all ranks, one rank after the other, and copies the files that belong to the model.

    Args:
        folder: of the model, in another format.
        target: the folder to write to.
        max_file_size: the most bytes of tensors in a file, unless a single tensor is larger.

    Raises:
        StartupError: the model cannot be read, or the target folder already has weights.
    """
    source = create_format(folder, options.load)
    if not isinstance(source, CheckpointFormat):
        raise StartupError(f"--load-format {options.load.load_format} has no checkpoint that could be divided.")
    if folder.is_file():
        raise StartupError(
            f"{folder} contains the configuration and tokenizer, which the files of ranks do not: serve it as it is, "
            "or save the model's safetensors."
        )
    if target.exists() and any(target.glob("*.safetensors")):
        raise StartupError(f"--output {target} already has safetensors files: choose a new folder.")
    layout = layout_of(options.parallel)
    check_shared(layout)
    for rank in range(layout.num_ranks):
        alone = ParallelGroup(
            layout.coordinates(rank).tensor, layout.tensor
        )  # without a process group: ranks do not communicate here
        groups = ParallelGroups(layout, rank, tensor=alone, expert=alone)
        decoder = build_model(folder, options, groups, torch.device("cpu")).model
        scales = load_weights(decoder, source, options.load.use_tqdm_on_load, packs=False)
        target.mkdir(parents=True, exist_ok=True)
        parameters = {name: p.data for name, p in decoder.named_parameters() if isinstance(p, LoadedParameter)}
        for part, tensors in enumerate(_parts(parameters | as_tensors(scales), max_file_size)):
            save_file(tensors, target / PATTERN.format(rank=rank, part=part), {"format": "pt"})
    for pattern in _BESIDE:
        for file in folder.glob(pattern):
            if not file.name.endswith(".index.json"):
                shutil.copy(file, target)
    logger.info("wrote the parameters of %d ranks to %s", layout.num_ranks, target)


def _parts(parameters: dict[str, torch.Tensor], max_size: int) -> Iterator[dict[str, torch.Tensor]]:
    part: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in parameters.items():
        if part and size + tensor.nbytes > max_size:
            yield part
            part, size = {}, 0
        part[name] = tensor.contiguous()
        size += tensor.nbytes
    if part:
        yield part
