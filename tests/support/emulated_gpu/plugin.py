"""For pytest: `-p tests.support.emulated_gpu.plugin` before anything else, so that tests of a GPU find one."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

from tests.support.emulated_gpu.cuda import install

install()
