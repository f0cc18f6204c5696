"""Which GPUs each engine of a local stack gets."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Mapping, Sequence

from quire.errors import StartupError

_DRIVER = "libcuda.so.1"
_VARIABLE = "CUDA_VISIBLE_DEVICES"
_SECONDS = 60.0


def count_gpus() -> int:
    """GPUs that processes of this environment see. Asked in a process of its own, which lets go of the driver."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return 0
    command = [sys.executable, "-m", "quire.serve.devices"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)  # noqa: S603  (our own)
    return int(answer.stdout) if answer.returncode == 0 else 0


def devices_of_engines(
    engines: int, ranks: int, gpus: int, environment: Mapping[str, str]
) -> Sequence[Mapping[str, str]]:
    """What each engine's environment must say for it to see GPUs that no other engine uses; nothing without GPUs.

    Args:
        ranks: GPUs that an engine needs.
        gpus: GPUs that this environment shows.

    Raises:
        StartupError: there are too few.
    """
    if engines == 1 or not gpus:
        return [{}] * engines
    if gpus < engines * ranks:
        ranks_text = f" with --tensor-parallel-size {ranks}" if ranks > 1 else ""
        fix = f"Start {gpus // ranks} at most" if gpus >= ranks else "Lower the latter"
        raise StartupError(
            f"--engines {engines}{ranks_text} needs {engines * ranks} GPUs, and this machine shows {gpus}. "
            f"{fix}, or set --device cpu."
        )
    named = [name.strip() for name in environment.get(_VARIABLE, "").split(",") if name.strip()]
    names = named or [str(index) for index in range(gpus)]
    return [{_VARIABLE: ",".join(names[index * ranks : (index + 1) * ranks])} for index in range(engines)]


def _ask_driver() -> int:
    driver = ctypes.CDLL(_DRIVER)
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


if __name__ == "__main__":
    print(_ask_driver())
