"""Entry point of rank processes: `python -m engine_svc.executor.start MODULE ARGUMENT`."""

from __future__ import annotations

import importlib
import sys

from quire.collection import without_collection
from quire.process_end import run_to_end

if __name__ == "__main__":
    with without_collection():
        module = importlib.import_module(sys.argv[1])
    run_to_end(lambda: module.run(sys.argv[2]))
