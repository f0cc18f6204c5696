"""Where a rank's model comes from: the folder that the options name, or another one with weights of the same form,
which a trainer may have sent."""

from __future__ import annotations

from pathlib import Path

import torch

from engine_svc.loader.checkpoint_form import CheckpointForm, read_form
from engine_svc.loader.folder import weights_folder
from engine_svc.loader.formats.consolidated import Consolidated
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.formats.safetensors_files import Safetensors
from engine_svc.loader.received import WeightReceiver
from engine_svc.parallel.group import ParallelGroups
from engine_svc.runner.operators_class import runner_class
from engine_svc.runner.runner import Runner
from engine_svc.upkeep import TransferUpkeep
from quire.errors import StartupError
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions


class ModelSource:
    """Loads a rank's model, and compares other checkpoints with the served one."""

    def __init__(
        self, model: ModelOptions, options: EngineOptions, groups: ParallelGroups, device: torch.device
    ) -> None:
        """
        Raises:
            StartupError: see `runner_class`.
        """
        self._model, self._options, self._groups, self._device = model, options, groups, device
        self._runner = runner_class(options.parallel.executor)
        self._form: CheckpointForm | None = None  # kept, as the served checkpoint's files need not stay
        self._receiver = WeightReceiver(self._sent_form, device, groups.rank)

    def load(self, folder: str = "") -> Runner:
        """Loads the model with the weights of a folder; an empty name stands for the one that the options name.

        Raises:
            StartupError: see Runner.
        """
        return self._runner(self._model.at(folder), self._options, self._groups, self._device)

    def why_not(self, folder: Path) -> str:
        """Why a folder's weights cannot be loaded in place of the served ones; empty if they can."""
        if not folder.is_absolute() or not folder.is_dir():
            return f"{folder} is not the absolute path of a folder on the worker's machine"
        try:
            difference = self._served_form().difference(read_form(folder, self._options))
        except (StartupError, OSError) as error:
            return str(error).rstrip(".")
        return difference and f"{folder}: {difference}"

    def receive(self, command: TransferUpkeep) -> list[str]:
        """See WeightReceiver.upkeep."""
        return self._receiver.upkeep(command)

    def _served_form(self) -> CheckpointForm:
        """
        Raises:
            StartupError: the served checkpoint is not in safetensors files.
        """
        if self._form is None:
            self._form = read_form(weights_folder(self._model, self._options.load), self._options)
        return self._form

    def _sent_form(self) -> CheckpointForm:
        """The form of weights that a trainer may send.

        Raises:
            StartupError: its tensors would be named differently than in safetensors files in Hugging Face's layout.
        """
        source = create_format(weights_folder(self._model, self._options.load), self._options.load)
        if not isinstance(source, Safetensors) or isinstance(source, Consolidated):
            raise StartupError(
                "Only weights in Hugging Face's layout, in safetensors files, can be replaced by others."
            )
        return self._served_form()
