"""Folders of tiny vision-language models, each made only once."""

from __future__ import annotations

import pytest

from tests.support.folders import FolderOf, made_once

VisionFolder = FolderOf


@pytest.fixture(scope="session")
def vision_folder(tmp_path_factory: pytest.TempPathFactory) -> VisionFolder:
    """Returns a function that makes a tiny model of a family, and returns its folder."""
    # Imported here, because Transformers takes a second, and not all of these tests need it.
    from tests.support.vision_models import make_vision_model

    return made_once(tmp_path_factory, make_vision_model)
