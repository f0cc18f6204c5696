"""Kernels that begin while the previous one ends (programmatic dependent launch, from compute capability 9.0 on).

This hides the launch latency, and a kernel's reads of data that no other kernel writes, behind the previous kernel.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl


@triton.jit
def await_inputs():
    """Waits until all kernels before this one have ended.

    Every program of a kernel launched with `begins_early` must call this before it reads what another kernel writes,
    and before it writes anything or ends. So when a kernel has ended, all kernels before it have ended too.
    """
    if tl.target_info.cuda_capability_geq(9, 0):
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@functools.cache
def begins_early() -> bool:
    """Whether a kernel may be launched before the previous one has ended: the value for `launch_pdl`."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
