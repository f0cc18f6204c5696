"""An adapter that is served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine_svc.adapters.config import CONFIG_FILE
from engine_svc.adapters.folder import WEIGHTS_FILE, ModuleShapes, read_folder, revision_of
from engine_svc.adapters.header import broken

Stamps = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Adapter:
    """As quire.v1.AdapterInfo, which says what the first fields mean."""

    name: str
    path: str  # as whoever loaded it wrote it
    revision: str
    rank: int
    base_model_name: str
    key: int  # of this loading of it; never used twice
    folder: str  # where the path leads
    stamps: Stamps = ()  # of its files, when they were checked

    def has_changed(self) -> bool:
        """Whether its files are others than those that were checked: what is read of them is not what its name says."""
        return bool(self.stamps) and _stamps(Path(self.folder)) != self.stamps


def read_adapter(
    name: str, path: str, base_model_name: str, key: int, folder: Path, max_rank: int, modules: ModuleShapes
) -> Adapter:
    """Checks a folder and names what is in it, which takes as long as reading it.

    Args:
        folder: where `path` leads.
        modules: see `read_folder`.

    Raises:
        InvalidRequest: it cannot be served; says why.
    """
    stamps = _stamps(folder)
    found = read_folder(folder, max_rank, modules)
    revision = revision_of(folder)
    if _stamps(folder) != stamps:
        raise broken(f"{folder} was written to while it was read; load it again when it is complete.")
    return Adapter(name, path, revision, found.rank, base_model_name, key, str(folder), stamps)


def _stamps(folder: Path) -> Stamps:
    try:
        found = [(folder / name).stat() for name in (CONFIG_FILE, WEIGHTS_FILE)]
    except (OSError, ValueError):
        return ()
    return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)
