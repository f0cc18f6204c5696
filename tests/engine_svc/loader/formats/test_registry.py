"""Which class a format name stands for: Quire's own, or one from a package."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_svc.loader.formats.registry import create_format, format_named
from engine_svc.loader.formats.safetensors_files import Safetensors
from quire.errors import StartupError
from quire.options.load import LoadOptions
from tests.support.run_engine import random_prompts, run, running_engine, tokens
from tests.support.tiny_models import check_greedy, make_model

PLUGIN = """
from engine_svc.loader.formats.safetensors_files import Safetensors
from engine_svc.loader.formats.base import CheckpointFormat

class Renamed(Safetensors):
    def found(self, pattern):
        return sorted(self.folder.glob("*.weights"))

class Unfinished(CheckpointFormat):
    pass
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a package with formats."""
    described = tmp_path / "formats-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: formats\nVersion: 1.0\n")
    points = "renamed = my_formats:Renamed\nunfinished = my_formats:Unfinished\nno-class = builtins:len\n"
    (described / "entry_points.txt").write_text(f"[quire.load_formats]\n{points}")
    (tmp_path / "my_formats.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_a_format_that_a_package_brings(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", "llama")
    (folder / "model.safetensors").rename(folder / "model.weights")
    prompts = random_prompts(5)
    with running_engine(folder, load_format="renamed") as engine:
        found = tokens(run(engine, prompts))
    (folder / "model.weights").rename(folder / "model.safetensors")
    check_greedy(folder, prompts, found, 64)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["unfinished", "no-class"])
def test_what_is_no_format(name: str) -> None:
    with pytest.raises(StartupError, match=rf"--load-format {name}: .* derives from .*LoadFormat"):
        format_named(name)


def test_names_that_nobody_has(tmp_path: Path) -> None:
    with pytest.raises(
        StartupError, match=r"--load-format odd does not exist\. Choose one of auto, safetensors, .*dum"
    ):
        create_format(tmp_path, LoadOptions(load_format="odd"))
    assert type(create_format(tmp_path, LoadOptions())) is Safetensors
