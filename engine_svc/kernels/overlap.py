"""Kernels that begin while those before them end (programmatic dependent launch, from compute capability 9.0 on).

What a launch takes, and what a kernel reads that no other one writes, is over by the time that its inputs are there.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl


@triton.jit
def await_inputs():
    """Until all kernels before this one have ended. Each program of a kernel that is launched with `begins_early` comes
    here, before it reads what another one writes, and before it writes anything or ends: so that when a kernel has
    ended, all before it have."""
    if tl.target_info.cuda_capability_geq(9, 0):
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@functools.cache
def begins_early() -> bool:
    """Whether a kernel is launched before the one ahead of it has ended: what `launch_pdl` is to be."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
