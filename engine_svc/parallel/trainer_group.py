"""The process group in which a trainer broadcasts new weights to ranks. It is apart from the ranks' own groups.

A trainer of torch.distributed makes the group from the store, as `TrainerGroup` does. vLLM's trainers use NCCL
themselves: they put the id of their communicator into the store.
"""

from __future__ import annotations

import pickletools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from engine_svc.upkeep import JoinTrainer

# Where vLLM's trainers and torch put the id of rank 0's communicator.
_VLLM_KEY, _TORCH_KEY = "broadcast_from/0/0", "0"
_LOOK_SECONDS = 0.0005
_ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES
# NCCL ends the process when its own time limit has passed.
_NCCL_EXTRA_SECONDS = 600.0


class TrainerGroup:
    """A rank's membership in a trainer's group. After an error it must be closed, as nothing more can be received."""

    def __init__(self, command: JoinTrainer, rank: int, device: torch.device) -> None:
        """Joins, and waits until all have.

        Args:
            rank: among the worker's ranks.
            device: of the tensors to receive: with GPUs the group uses NCCL, otherwise Gloo.

        Raises:
            RuntimeError, OSError: not all have joined in time, or the trainer is not there.
        """
        self.device, number, size = device, command.first_rank + rank, command.world_size
        deadline, limit = time.monotonic() + command.seconds, timedelta(seconds=command.seconds)
        store = dist.TCPStore(command.address, command.port, size, is_master=False, timeout=limit)
        if device.type == "cuda":
            longer = limit + timedelta(seconds=_NCCL_EXTRA_SECONDS)
            self._group: Any = dist.ProcessGroupNCCL(_with_id(store, deadline), number, size, longer)
        else:
            options = dist.ProcessGroupGloo._Options()
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=command.own_address)]
            options._timeout = limit
            self._group = dist.ProcessGroupGloo(store, number, size, options)
        self._finish(self._group.allreduce([torch.zeros(1, device=device)]), deadline)

    def receive(self, num_bytes: int, deadline: float) -> torch.Tensor:
        """The bytes that the trainer broadcasts next, uint8 [num_bytes].

        Args:
            deadline: by the monotonic clock.

        Raises:
            RuntimeError: they do not arrive in time, or a member of the group is gone.
        """
        content, options = torch.empty(num_bytes, dtype=torch.uint8, device=self.device), dist.BroadcastOptions()
        options.rootRank, options.timeout = 0, timedelta(seconds=max(0.001, deadline - time.monotonic()))
        self._finish(self._group.broadcast([content], options), deadline)
        return content

    def close(self) -> None:
        """Leaves the group: others that wait for this rank get an error, at least with Gloo."""
        if self._group is not None and self.device.type == "cuda":
            self._group.abort()
        self._group = None

    def _finish(self, work: Any, deadline: float) -> None:
        if self.device.type == "cuda":  # for NCCL, `wait` only has the device wait
            _await(work.is_completed, deadline)
        work.wait()


def _with_id(store: dist.Store, deadline: float) -> dist.Store:
    """A store from which ProcessGroupNCCL reads the communicator's id, whichever kind of trainer has written it."""
    _await(lambda: store.check([_VLLM_KEY]) or store.check([_TORCH_KEY]), deadline)
    if not store.check([_VLLM_KEY]):
        return store
    own = dist.HashStore()
    own.set(_TORCH_KEY, read_communicator_id(store.get(_VLLM_KEY)))
    return own


def _await(is_there: Callable[[], bool], deadline: float) -> None:
    while not is_there():
        if time.monotonic() > deadline:
            raise RuntimeError("the others did not answer in time")
        time.sleep(_LOOK_SECONDS)


def read_communicator_id(pickled: bytes) -> bytes:
    """The id of an NCCL communicator in what vLLM's trainers write, a pickled structure, which is not unpickled.

    Raises:
        RuntimeError: there is none.
    """
    try:
        for _, content, _ in pickletools.genops(pickled):
            if isinstance(content, bytes) and len(content) == _ID_BYTES:
                return content
    except ValueError as error:
        raise RuntimeError(f"what the trainer writes about its communicator cannot be read: {error}") from error
    raise RuntimeError("the trainer writes no id of its communicator")
