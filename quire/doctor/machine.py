"""Checks the machine: processors, GPUs, a compiler, and limits on files and disks."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator

from quire.cache_folder import cache_folder
from quire.doctor.finding import Finding, fine, problem, warning
from quire.open_files import BESIDE_CONNECTIONS
from quire.processor_name import processor_name
from quire.processors import read_machine
from quire.serve.devices import count_gpus
from quire.serve.layout import StackOptions

_GIB = 2**30
_LEAST_DISK_BYTES = _GIB


def processors() -> Iterator[Finding]:
    """Checks the operating system, and the processors that this process may use."""
    if sys.platform != "linux":
        yield problem("system", f"Quire runs only on Linux; this is {platform.system()}. Use a container.")
        return
    machine = read_machine()
    cores = len({processor.core for processor in machine.processors})
    quota = f", of which the control group allows {machine.quota:g}" if machine.quota else ""
    yield fine("processor", f"{processor_name()}: {len(machine.processors)} processors on {cores} cores{quota}")


def gpus(options: StackOptions) -> Iterator[Finding]:
    """Compares the GPUs that are needed with those present."""
    device, there = options.engine.kernels.device, count_gpus()
    wanted = len(options.ranks.ranks) * options.engine.parallel.num_local_ranks
    if device == "cuda" and not there:
        yield problem("GPU", "--device cuda needs a GPU, but the driver shows none. Leave it out to run on the CPU.")
    elif device == "cpu" or not there:
        yield fine("GPU", f"{there} found; the model runs on the CPU")
    elif there < wanted:
        yield problem(
            "GPU", f"{wanted} are needed, but only {there} found. Lower --data-parallel-size or --tensor-parallel-size."
        )
    else:
        yield fine("GPU", f"{there} found, {wanted} needed")


def compiler(options: StackOptions) -> Iterator[Finding]:
    """Checks whether CPU kernels can be compiled, in case the package brings none."""
    if options.engine.kernels.device == "cuda" or options.engine.kernels.cpu_kernels == "torch":
        return
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if found:
        yield fine("compiler", found)
    else:
        yield warning(
            "compiler", "There is no g++ or clang++. Unless the package includes its CPU kernels, torch's operators "
            "are used instead, which is slower: install g++."
        )  # fmt: skip


def limits(options: StackOptions) -> Iterator[Finding]:
    """Checks the limit on open files, and the disk space for downloads and compiled kernels."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # gateways raise their own limit to this one
    needed = options.gateway.max_connections + BESIDE_CONNECTIONS
    if hard != resource.RLIM_INFINITY and hard < needed:
        yield warning(
            "open files", f"{hard} are allowed; --max-connections {options.gateway.max_connections} needs {needed}: "
            f"`ulimit -n {needed}` (as root), or lower it."
        )  # fmt: skip
    else:
        yield fine("open files", f"{hard if hard >= 0 else 'unlimited'} allowed")
    cache = cache_folder()
    folder = next(place for place in (cache, *cache.parents) if place.exists())
    free = shutil.disk_usage(folder).free
    judge = warning if free < _LEAST_DISK_BYTES else fine
    yield judge("disk", f"{free / _GIB:.1f} GiB free in {folder}, for downloads and compiled kernels")
