"""Folders of tiny vision-language models, each made only once, and encoders without a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.folders import FolderOf, made_once

VisionFolder = FolderOf


@pytest.fixture(scope="session")
def vision_folder(tmp_path_factory: pytest.TempPathFactory) -> VisionFolder:
    """Returns a function that makes a tiny model of a family, and returns its folder."""
    # Imported here, because Transformers takes a second, and not all of these tests need it.
    from tests.support.vision_models import make_vision_model

    return made_once(tmp_path_factory, make_vision_model)


class _AtOnce:
    """Stands for a thread: what is submitted has run when the call returns."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def submit(self, call: Callable[..., None], *arguments: Any) -> None:
        call(*arguments)

    def shutdown(self, **_: Any) -> None: ...


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are encoded in the step that asks for them, so that it is known when their sequences start."""
    monkeypatch.setattr("engine_svc.media.store.ThreadPoolExecutor", _AtOnce)
