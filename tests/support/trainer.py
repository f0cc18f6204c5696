"""A trainer process of plain torch, which sends tensors to the ranks of a worker."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from engine_svc.upkeep import SentTensor
from tests.support.forked_ranks import PRELOADED

SECONDS = 30.0


class TrainerProcess:
    """Sends what it is told to; the calls do not wait."""

    def __init__(self, pipe: Any, process: Any) -> None:
        self._pipe, self._process = pipe, process
        self.port: int = pipe.recv()

    def send(self, tensors: list[torch.Tensor], dies: bool = False) -> None:
        """Broadcasts the tensors, and then may end without saying goodbye."""
        self._pipe.send((tensors, dies))

    def outcome(self) -> str:
        """Waits until the oldest tensors have been sent; returns the error, if any."""
        assert self._pipe.poll(SECONDS), "the trainer does not answer"
        return str(self._pipe.recv())


@contextlib.contextmanager
def running_trainer(world_size: int) -> Iterator[TrainerProcess]:
    """A trainer that waits for all ranks of its group."""
    multiprocessing.set_forkserver_preload(list(PRELOADED))
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=_train, args=(theirs, world_size), daemon=True)
    process.start()
    theirs.close()
    try:
        yield TrainerProcess(ours, process)
    finally:
        process.kill()
        process.join()


def _train(pipe: Any, world_size: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    limit = timedelta(seconds=SECONDS)
    store = dist.TCPStore("127.0.0.1", 0, world_size, is_master=True, timeout=limit, wait_for_workers=False)
    pipe.send(store.port)
    group = dist.ProcessGroupGloo(store, 0, world_size, limit)
    group.allreduce([torch.zeros(1)]).wait()
    while True:
        tensors, dies = pipe.recv()
        try:
            for tensor in tensors:
                group.broadcast(tensor, 0).wait()
        except RuntimeError as error:
            pipe.send(str(error))
            continue
        if dies:
            os._exit(1)
        pipe.send("")


def described(weights: dict[str, torch.Tensor]) -> list[SentTensor]:
    """What a worker is told of tensors to come."""
    return [
        SentTensor(name, str(each.dtype).removeprefix("torch."), tuple(each.shape)) for name, each in weights.items()
    ]


def packed(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """All tensors in one buffer, uint8 [bytes]."""
    return torch.cat([each.contiguous().flatten().view(torch.uint8) for each in weights.values()])
