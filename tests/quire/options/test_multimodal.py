"""`--limit-mm-per-prompt` in all the forms that vLLM's versions take."""

from __future__ import annotations

import pytest

from quire.errors import StartupError
from quire.options.multimodal import most_images


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        ("", 999), ('{"image": 16, "video": 2}', 16), ('{"images": 16, "videos": 2}', 16), ("image=4", 4),
        ("image=16,video=2", 16), ("video=2, images=3", 3), ("audio=1", 999), ('{"image": 0}', 0),
    ],
)  # fmt: skip
def test_forms(limit: str, most: int) -> None:
    assert most_images(limit) == most


@pytest.mark.parametrize("limit", ["4", "image", "image=", "image=-1", "cat=4", '{"image": "4"}', '{"image"', "[1]"])
def test_what_is_malformed_is_explained(limit: str) -> None:
    with pytest.raises(StartupError, match="or image=4"):
        most_images(limit)
