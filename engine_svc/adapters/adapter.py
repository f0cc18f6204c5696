"""An adapter that is served, and its checks when it is loaded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from engine_svc.adapters.config import CONFIG_FILE
from engine_svc.adapters.folder import WEIGHTS_FILE, ModuleShapes, read_folder, revision_of
from engine_svc.adapters.header import broken
from engine_svc.adapters.targets import TargetModules

Stamps = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Adapter:
    """An adapter. The first fields are documented in quire.v1.AdapterInfo."""

    name: str
    path: str  # as given by the caller that loaded it
    revision: str
    rank: int
    base_model_name: str
    key: int  # identifies this load of the adapter; never reused
    folder: str  # the resolved path
    stamps: Stamps = ()  # (inode, size, mtime) of its files when they were checked
    is_default: bool = False

    def has_changed(self) -> bool:
        """Whether its files have changed since they were checked, so that their contents do not match the revision."""
        return bool(self.stamps) and _stamps(Path(self.folder)) != self.stamps


def read_adapter(
    name: str, path: str, base_model_name: str, key: int, folder: Path, max_rank: int, modules: ModuleShapes,
    targets: TargetModules = TargetModules(), heads: Collection[str] = (),
) -> Adapter:  # fmt: skip
    """Checks a folder and computes its revision, which takes as long as reading all of it.

    Args:
        folder: the resolved `path`.
        modules, targets, heads: see `read_folder`.

    Raises:
        InvalidRequest: the adapter cannot be served; says why.
    """
    stamps = _stamps(folder)
    found = read_folder(folder, max_rank, modules, targets, heads=heads)
    revision = revision_of(folder)
    if _stamps(folder) != stamps:
        raise broken(f"{folder} was modified while it was being read; load it again when it is complete.")
    return Adapter(name, path, revision, found.rank, base_model_name, key, str(folder), stamps)


def _stamps(folder: Path) -> Stamps:
    try:
        found = [(folder / name).stat() for name in (CONFIG_FILE, WEIGHTS_FILE)]
    except (OSError, ValueError):
        return ()
    return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)
