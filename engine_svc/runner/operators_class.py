"""Custom classes, provided by the operator, that run the model on each rank. docs/scaling.md has their contract."""

from __future__ import annotations

import logging
from typing import Any

from engine_svc.runner.runner import Runner
from quire.errors import StartupError
from quire.options.executor import ExecutorOptions
from quire.registry import load_qualified

logger = logging.getLogger(__name__)


def runner_class(options: ExecutorOptions) -> type[Runner]:
    """The class of `--worker-cls`, with that of `--worker-extension-cls` before it.

    Raises:
        StartupError: there is no such class, or it cannot be used for this; the message says why.
    """
    chosen = _runner(options.worker_cls)
    if not options.worker_extension_cls:
        return chosen
    extension = _class("--worker-extension-cls", options.worker_extension_cls)
    if issubclass(extension, Runner) or "__init__" in vars(extension):
        raise StartupError(
            f"--worker-extension-cls {options.worker_extension_cls} derives from Runner or has an __init__ of its "
            "own: an extension may only add methods, or extend those of Runner with super(). Use --worker-cls."
        )
    try:
        extended = type(f"{extension.__name__}{chosen.__name__}", (extension, chosen), {})
    except TypeError as error:
        raise StartupError(f"--worker-extension-cls {options.worker_extension_cls}: {error}") from error
    logger.info("the model is run by %s, extended by %s", chosen.__qualname__, options.worker_extension_cls)
    return extended


def _runner(name: str) -> type[Runner]:
    if name == "auto":
        return Runner
    found = _class("--worker-cls", name)
    if not issubclass(found, Runner):
        raise StartupError(f"--worker-cls {name} is not a class derived from {Runner.__module__}.Runner")
    return found


def _class(flag: str, name: str) -> type[Any]:
    try:
        found = load_qualified(name)
    except ValueError as error:
        raise StartupError(f"{flag} {name}: {error}.") from error
    if not isinstance(found, type):
        raise StartupError(f"{flag} {name} is not a class.")
    return found
