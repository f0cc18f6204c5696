"""Assigns GPUs to the engines of a local stack."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence

from quire.errors import StartupError
from quire.options.parallel import ParallelOptions

_DRIVER = "libcuda.so.1"
_VARIABLE = "CUDA_VISIBLE_DEVICES"
_SECONDS = 60.0


def has_driver() -> bool:
    """Whether this process could use GPUs, if there are any."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


def count_gpus() -> int:
    """Number of GPUs visible in this environment. Asked in a separate process, whose end releases the driver."""
    if not has_driver():
        return 0
    command = [sys.executable, "-m", "quire.serve.devices"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)  # noqa: S603  (our own)
    return int(answer.stdout) if answer.returncode == 0 else 0


def show_devices(ids: Sequence[str], environment: MutableMapping[str, str]) -> None:
    """Shows only these GPUs to this process and to those that it starts: --device-ids.

    Raises:
        StartupError: an id is repeated or empty, or the environment has chosen others.
    """
    if not ids:
        return
    wanted, chosen = ",".join(ids), environment.get(_VARIABLE)
    names = wanted.split(",")
    if "" in names or len(set(names)) < len(names):
        raise StartupError(f"--device-ids {wanted}: each GPU must be named once, by its number or UUID.")
    if chosen not in (None, wanted):
        raise StartupError(f"--device-ids {wanted} contradicts {_VARIABLE}={chosen}. Leave one of them out.")
    environment[_VARIABLE] = wanted


def devices_of_engines(
    engines: int, parallel: ParallelOptions, gpus: int, environment: Mapping[str, str], share: float = 1.0
) -> Sequence[Mapping[str, str]]:
    """The environment variables that show each engine its GPUs; empty without GPUs.

    If there are too few GPUs for each engine to have its own, engines of one rank share them, as far as memory allows.

    Args:
        parallel: determines how many GPUs an engine needs.
        gpus: number of GPUs visible in this environment.
        share: share of a GPU's memory that an engine takes.

    Raises:
        StartupError: there are too few GPUs.
    """
    ranks = parallel.num_local_ranks
    of_each = -(-engines // gpus) if gpus else 1  # engines per GPU
    shares = ranks == 1 and of_each * share <= 1.0
    if gpus and gpus < engines * ranks and not shares:
        fix = f"Lower the number of engines to {gpus // ranks}" if gpus >= ranks else "Use fewer ranks per engine"
        sharing = f" let them share with --gpu-memory-utilization {0.9 / of_each:.2f}," if ranks == 1 else ""
        raise StartupError(
            f"{_sum(engines, ranks)}, but this machine has {gpus}. {fix} (--data-parallel-size-local, "
            f"--tensor-parallel-size),{sharing} or set --device cpu."
        )
    if engines == 1 or not gpus:
        return [{}] * engines
    names = _names(gpus, environment)
    if gpus < engines:
        return [{_VARIABLE: names[index % gpus]} for index in range(engines)]
    return [{_VARIABLE: ",".join(names[index * ranks : (index + 1) * ranks])} for index in range(engines)]


def devices_of_encoders(
    encoders: int, taken: int, gpus: int, environment: Mapping[str, str]
) -> Sequence[Mapping[str, str]]:
    """The environment variables that show each worker that only encodes its GPU; empty without GPUs.

    They take the GPUs that the engines leave over in turns; if there are none, they share those of the engines.

    Args:
        taken: number of GPUs that the engines use, which are the first ones.
        gpus: number of GPUs visible in this environment.
    """
    names = _names(gpus, environment)
    names = names[taken:] or names
    return [{_VARIABLE: names[index % len(names)]} if names else {} for index in range(encoders)]


def _names(gpus: int, environment: Mapping[str, str]) -> Sequence[str]:
    """The names of the GPUs visible in this environment."""
    named = [name.strip() for name in environment.get(_VARIABLE, "").split(",") if name.strip()]
    return named or [str(index) for index in range(gpus)]


def _sum(engines: int, ranks: int) -> str:
    """States how many GPUs the engines need."""
    who = f"{engines} engines of {ranks} ranks each" if engines > 1 and ranks > 1 else ""
    who = who or (f"An engine of {ranks} ranks" if ranks > 1 else f"{engines} engines")
    return f"{who} need{'s' if engines == 1 else ''} {engines * ranks} GPUs"


def _ask_driver() -> int:
    driver = ctypes.CDLL(_DRIVER)
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


if __name__ == "__main__":
    print(_ask_driver())
