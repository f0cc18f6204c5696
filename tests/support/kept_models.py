"""Transformers' models that tests compare with, of which a process keeps the last ones for its next tests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import transformers

_MOST = 3
_kept: OrderedDict[Hashable, Any] = OrderedDict()

# Transformers writes out each configuration that it reads for its log, even if nothing is logged: a tenth of the time
# of tests with tiny models.
transformers.PreTrainedConfig.__repr__ = object.__repr__


def kept_model(folder: Path, load: Callable[[], Any], *options: Hashable) -> Any:
    """What `load` makes of the files in a folder, or made of the same ones before; nobody may change it.

    Args:
        options: that `load` depends on.
    """
    files = tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(folder.iterdir()))
    key = (folder, files, *options)
    if key not in _kept:
        _kept[key] = load()
    _kept.move_to_end(key)
    while len(_kept) > _MOST:
        _kept.popitem(last=False)
    return _kept[key]
