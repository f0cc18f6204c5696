"""The served adapters, by name."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from engine_svc.adapters.adapter import Adapter, read_adapter
from engine_svc.adapters.config import CONFIG_FILE
from engine_svc.adapters.folder import WEIGHTS_FILE, ModuleShapes
from engine_svc.adapters.header import broken
from engine_svc.adapters.targets import TargetModules
from quire.bounds import MAX_ADAPTERS, check_adapter_name
from quire.errors import MODEL_NOT_FOUND, FailedPrecondition, InvalidRequest, NotFound, Overloaded, StartupError
from quire.options.lora import ENABLE_FLAG, UPDATING_FLAG, LoraModule, LoraOptions


class AdapterRegistry:
    """Maps names to adapters. Filled at startup, and changed only in the event loop afterwards.

    A request gets its adapter when it arrives and keeps it: an adapter that is removed or replaced here still serves
    the requests that have it.
    """

    def __init__(
        self, options: LoraOptions, served_model_names: Collection[str], modules: ModuleShapes,
        heads: Collection[str] = (),
    ) -> None:  # fmt: skip
        """
        Args:
            served_model_names: names that no adapter may have.
            modules, heads: see `read_folder`.
        """
        self._options = options
        self._served_model_names = served_model_names
        self._modules, self._heads = modules, heads
        self._adapters: dict[str, Adapter] = {}
        self._keys = itertools.count(1)
        # Starts from the clock, so that it changes when a worker is restarted.
        self.version = time.time_ns() if options.enable_lora else 0

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """All served adapters."""
        return tuple(self._adapters.values())

    def find(self, name: str) -> Adapter | None:
        """The adapter with this name; None if there is none."""
        return self._adapters.get(name)

    def read_at_start(self, module: LoraModule) -> None:
        """Serves an adapter that the options name.

        Raises:
            StartupError: it cannot be served; says why.
        """
        try:
            self._check_name(module.name)
            folder = Path(module.path).expanduser().resolve()
            self.put(self._read(module.name, module.path, module.base_model_name or "", folder))
        except InvalidRequest as error:
            raise StartupError(f"--lora-modules {module.name}: {error.message}") from error

    def read(self, name: str, path: str, base_model_name: str) -> Adapter:
        """Reads and checks an adapter that a caller names at runtime, without serving it yet; callable from any thread.

        Raises:
            FailedPrecondition: adapters cannot be loaded at runtime.
            InvalidRequest: it cannot be served, or is outside of the allowed folder.
        """
        self.check_updating()
        self._check_name(name)
        if len(base_model_name) > 256:
            raise InvalidRequest("base_model_name must have at most 256 characters.", parameter="base_model_name")
        return self._read(name, path, base_model_name, self._allowed_folder(path))

    def check_updating(self) -> None:
        """Checks that adapters may be loaded and unloaded at runtime.

        Raises:
            FailedPrecondition: they may not.
        """
        if not self._options.enable_lora:
            raise FailedPrecondition(f"This server does not support adapters; start it with {ENABLE_FLAG}.")
        if not self._options.allow_runtime_lora_updating:
            raise FailedPrecondition(
                f"This server does not load adapters while it is running; start it with {UPDATING_FLAG} (or "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)."
            )

    def put(self, adapter: Adapter, in_place: bool = False) -> Adapter | None:
        """Serves an adapter; returns the one that it replaces, if any.

        Raises:
            InvalidRequest: another adapter has the name, and `in_place` is False.
            Overloaded: too many adapters are served.
        """
        taken = self._adapters.get(adapter.name)
        if taken is not None and not in_place:
            raise InvalidRequest(
                f"{adapter.name} is already the name of the adapter in {taken.path}; unload that one, or replace it "
                "(load_inplace).",
                parameter="name",
            )
        if taken is None and len(self._adapters) >= MAX_ADAPTERS:
            raise Overloaded(f"{MAX_ADAPTERS} adapters are already being served; unload one of them.")
        self._adapters[adapter.name] = adapter
        self.version += 1
        return taken

    def remove(self, name: str) -> Adapter:
        """Stops serving a name; returns its adapter.

        Raises:
            FailedPrecondition: see `check_updating`.
            NotFound: no adapter has this name.
        """
        self.check_updating()
        if name not in self._adapters:
            raise NotFound(f"No adapter is named {name[:200]!r}.", parameter="name", reason=MODEL_NOT_FOUND)
        self.version += 1
        return self._adapters.pop(name)

    def _check_name(self, name: str) -> None:
        check_adapter_name("name", name)
        if name in self._served_model_names:
            raise InvalidRequest(
                f"{name} is the model's own name; choose another name for the adapter.", parameter="name"
            )

    def _read(self, name: str, path: str, base_model_name: str, folder: Path) -> Adapter:
        key, most = next(self._keys), self._options.max_lora_rank
        targets = TargetModules(self._options.lora_target_modules)
        adapter = read_adapter(name, path, base_model_name, key, folder, most, self._modules, targets, self._heads)
        return replace(adapter, is_default=name in self._options.default_mm_loras)

    def _allowed_folder(self, path: str) -> Path:
        """Resolves a path relative to the allowed folder; the folder and its files must be within that."""
        if not path or len(path) > 4096 or "\0" in path:
            raise broken("path must be the adapter's folder, with 1 to 4096 characters.")
        root = Path(self._options.allowed_lora_root or "").expanduser().resolve()
        folder = (root / path).resolve()
        for place in (folder, (folder / CONFIG_FILE).resolve(), (folder / WEIGHTS_FILE).resolve()):
            if not place.is_relative_to(root):
                raise broken(f"{path[:200]} is not in, or leads out of, the folder that --allowed-lora-root allows.")
        return folder
