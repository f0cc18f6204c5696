"""Where a rank's model comes from: the folder that the options name, or another one with weights of the same form,
which a trainer may have sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from engine_svc.loader.checkpoint_form import CheckpointForm, read_form
from engine_svc.loader.draft import draft_folder, draft_load
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
from quire.options.model_form import ModelFormOptions


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
        self._forms: dict[bool, CheckpointForm] = {}  # kept, as the served checkpoint's files need not stay
        self._receiver = WeightReceiver(self._sent_form, self._draft_folder, device, groups.rank)

    def load(self, folder: str = "", draft_folder: str = "") -> Runner:
        """Loads the model with the weights of a folder, and its draft model with those of another one; an empty name
        stands for the one that the options name.

        Raises:
            StartupError: see Runner.
        """
        options = replace(self._options, speculative=self._options.speculative.at(draft_folder))
        return self._runner(self._model.at(folder), options, self._groups, self._device)

    def why_not(self, folder: Path) -> str:
        """Why a folder's weights cannot be loaded in place of the served ones; empty if they can."""
        if not folder.is_absolute() or not folder.is_dir():
            return f"{folder} is not the absolute path of a folder on the worker's machine"
        try:
            difference = self._form(of_draft=False).difference(read_form(folder, self._options))
        except (StartupError, OSError) as error:
            return str(error).rstrip(".")
        return difference and f"{folder}: {difference}"

    def receive(self, command: TransferUpkeep) -> list[str]:
        """See WeightReceiver.upkeep."""
        return self._receiver.upkeep(command)

    def _form(self, *, of_draft: bool) -> CheckpointForm:
        """
        Raises:
            StartupError: the served checkpoint, or that of the draft model, is not in safetensors files.
        """
        if of_draft not in self._forms:
            self._forms[of_draft] = read_form(*self._place(of_draft))
        return self._forms[of_draft]

    def _place(self, of_draft: bool) -> tuple[Path, EngineOptions]:
        """The folder that the options name, and those by which it is read."""
        options = self._options
        if not of_draft:
            return weights_folder(self._model, options.load), options
        return self._draft_folder(), replace(options, form=ModelFormOptions(), load=draft_load(options.load))

    def _draft_folder(self) -> Path:
        config = self._options.speculative.chosen()
        assert config is not None  # see WeightTransfer.start
        return draft_folder(config, self._model, draft_load(self._options.load))

    def _sent_form(self, of_draft: bool) -> CheckpointForm:
        """The form of weights that a trainer may send.

        Raises:
            StartupError: its tensors would be named differently than in safetensors files in Hugging Face's layout.
        """
        folder, options = self._place(of_draft)
        source = create_format(folder, options.load)
        if not isinstance(source, Safetensors) or isinstance(source, Consolidated):
            raise StartupError(
                "Only weights in Hugging Face's layout, in safetensors files, can be replaced by others."
            )
        return self._form(of_draft=of_draft)
