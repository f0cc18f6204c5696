"""Weights that a trainer sends to a worker: received into a folder, from which they are then loaded like others.

Until all of them are there, the worker serves the weights that it has. So a trainer that is lost leaves nothing behind
but a folder, which the next update or the end of the worker removes.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_svc.core.administration import Administration
from engine_svc.executor.network import own_address
from engine_svc.upkeep import (
    CheckTensors,
    CompleteWeights,
    JoinTrainer,
    LeaveTrainer,
    ReceiveTensors,
    SentTensor,
)
from quire.errors import Conflict, FailedPrecondition, InvalidRequest, QuireError, Unavailable
from quire.options.engine import EngineOptions
from quire.options.speculative import LOOKUP_METHODS, MTP
from quire.options.upkeep import UpkeepOptions

logger = logging.getLogger(__name__)

_PREFIX, _LOCK = "quire-weights-", "lock"


@dataclass(frozen=True)
class Packing:
    """How a trainer broadcasts tensors; see ReceiveTensors."""

    buffer_bytes: int | None


@dataclass(frozen=True)
class Trainer:
    """A trainer's process group.

    Attributes:
        address, port: of its store.
        first_rank: of the worker's first rank in the group.
        world_size: of the group.
        packing: of tensors, unless `receive` is told otherwise.
    """

    address: str
    port: int
    first_rank: int
    world_size: int
    packing: Packing


class WeightTransfer:
    """Receives weights from one trainer at a time. Its methods are for the event loop, and wait for each other."""

    def __init__(self, administration: Administration, options: EngineOptions, spans_machines: bool) -> None:
        """
        Args:
            spans_machines: whether the worker's ranks may be on several machines.
        """
        self._administration, self._options, self._spans_machines = administration, options, spans_machines
        self._lock = asyncio.Lock()
        self._trainer: Trainer | None = None
        self._folders = Folders(options.upkeep)
        self._finishing: asyncio.Task[None] | None = None
        self._received: Path | None = None  # the folder of new weights, if they have begun
        self._of_draft = False  # whether those are of the draft model
        self._draft: Path | None = None  # the folder of its weights, if a trainer has sent them

    def close(self) -> None:
        """Removes everything that was received; called when nothing is loaded any more."""
        self._folders.close()

    async def join(self, trainer: Trainer, seconds: float) -> None:
        """Has the ranks join a trainer's group; forgets an earlier one.

        Raises:
            FailedPrecondition: this worker cannot receive weights.
            InvalidRequest: the numbers of ranks do not fit together, or the address is unknown.
            Unavailable: not all have joined in time.
        """
        if self._options.upkeep.weight_transfer() is None:
            raise FailedPrecondition(
                "Weights are received only by workers that were started with --weight-transfer-config "
                '\'{"backend": "nccl"}\'.'
            )
        if self._spans_machines:
            raise FailedPrecondition("Weights cannot be received by a worker whose ranks are on several machines.")
        last_rank = trainer.first_rank + self._options.parallel.num_ranks - 1
        if not 1 <= trainer.first_rank <= last_rank < trainer.world_size:
            raise InvalidRequest(
                f"world_size is {trainer.world_size}, but the worker's ranks are {trainer.first_rank} to {last_rank}; "
                "the trainer is rank 0, and world_size counts it and all ranks.", parameter="world_size",
            )  # fmt: skip
        try:
            address = await asyncio.to_thread(own_address, trainer.address)
        except (OSError, UnicodeError) as error:
            raise InvalidRequest(
                f"master_address {trainer.address[:100]!r} cannot be reached: {error}.", parameter="master_address"
            ) from error
        async with self._lock:
            await self._forget()
            if refusals := await self._administration.upkeep(CheckTensors([])):
                raise FailedPrecondition(f"{refusals[0]}.")
            command = JoinTrainer(
                trainer.address, trainer.port, address, trainer.first_rank, trainer.world_size, seconds
            )
            await self._obey(command, "The group of the trainer could not be joined")
            self._trainer = trainer
            logger.info("joined the group of the trainer at %s:%d", trainer.address, trainer.port)

    async def start(self, *, of_draft: bool = False) -> None:
        """Begins new weights.

        Args:
            of_draft: whether they are those of the draft model. If that is a part of the model's own checkpoint, they
                are those of the whole.

        Raises:
            Conflict: no trainer has joined.
            FailedPrecondition: there is no place for them; or no draft model; or not one whose weights can be sent, and
                the group has been left.
        """
        speculation = self._options.speculative.chosen()
        method = None if speculation is None else speculation.chosen_method
        if of_draft and (method is None or method in LOOKUP_METHODS):
            raise FailedPrecondition("There is no draft model: the server needs one in --speculative-config.")
        async with self._lock:
            if self._trainer is None:
                raise Conflict("No trainer has joined, or its group was left after an error: call "
                               "/init_weight_transfer_engine first.")  # fmt: skip
            await self._drop_received()
            self._of_draft = of_draft and method != MTP
            if refusals := await self._administration.upkeep(CheckTensors([], self._of_draft)):
                await self._forget()
                raise FailedPrecondition(f"{refusals[0]}. The group has been left, and nothing has changed.")
            try:
                self._received = await asyncio.to_thread(self._folders.make)
            except OSError as error:
                raise FailedPrecondition(f"There is no folder for the weights: {error}.") from error

    async def receive(self, tensors: Sequence[SentTensor], packing: Packing | None, seconds: float) -> None:
        """Receives tensors.

        Args:
            packing: None means that of the trainer.

        Raises:
            Conflict: nothing has begun.
            InvalidRequest: they cannot replace the served ones; the group has been left.
            Unavailable: they have not arrived; the group has been left.
        """
        async with self._lock:
            folder = self._begun()
            assert self._trainer is not None
            buffer_bytes = (packing or self._trainer.packing).buffer_bytes
            if refusals := await self._administration.upkeep(CheckTensors(list(tensors), self._of_draft)):
                await self._forget()
                raise InvalidRequest(f"{refusals[0]}. The group has been left, and nothing has changed.",
                                     parameter="update_info")  # fmt: skip
            command = ReceiveTensors(list(tensors), str(folder), seconds, buffer_bytes, self._of_draft)
            await self._obey(command, "The weights have not arrived, and the served ones stay")

    async def finish(self, served: Path, replace: Callable[[Path, str], Awaitable[None]]) -> None:
        """Replaces the served weights by those received, even if the caller stops waiting. If they cannot be loaded, it
        may be tried again.

        Args:
            served: folder of the served weights.
            replace: loads the weights of a folder, and those of the draft model of another one, unless it is empty.

        Raises:
            Conflict: nothing has begun.
            InvalidRequest: nothing was received.
            FailedPrecondition: there is no space for the weights; the group has been left. Or as `replace`.
        """
        self._finishing = asyncio.create_task(self._finish(served, replace))
        await asyncio.shield(self._finishing)

    async def _finish(self, served: Path, replace: Callable[[Path, str], Awaitable[None]]) -> None:
        async with self._lock:
            folder = self._begun()
            if not any(folder.iterdir()):
                raise InvalidRequest("No tensors were received: call /update_weights before.")
            before = self._draft or "" if self._of_draft else served
            if failures := await self._administration.upkeep(CompleteWeights(str(folder), str(before), self._of_draft)):
                await self._forget()
                raise FailedPrecondition(f"{failures[0]}.")
            if self._of_draft:
                await replace(served, str(folder))
                self._draft = folder
            else:
                await replace(folder, "")
                served = folder
            self._received = None
            await asyncio.to_thread(self._folders.drop_all_but, {served, self._draft})

    def _begun(self) -> Path:
        if self._received is None or self._trainer is None:
            raise Conflict("No new weights have begun, or what was received is lost: call /start_weight_update first.")
        return self._received

    async def _obey(self, command: JoinTrainer | ReceiveTensors, failure: str) -> None:
        try:
            failures = await self._administration.upkeep(command)
        except QuireError:
            self._trainer = None
            raise
        if failures:
            logger.warning("%s: %s", failure, failures[0])
            await self._forget()
            raise Unavailable(f"{failure}: {failures[0]}. Call /init_weight_transfer_engine again.")

    async def _forget(self) -> None:
        """Leaves the trainer's group on all ranks, also on those where nothing has failed."""
        self._trainer = None
        await self._drop_received()
        await self._administration.upkeep(LeaveTrainer())

    async def _drop_received(self) -> None:
        dropped, self._received = self._received, None
        if dropped is not None:
            await asyncio.to_thread(self._folders.drop, dropped)


class Folders:
    """The folders of this process with received weights; they are removed when it ends.

    Each process has a locked file beside its folders, by which others notice that they were left behind.
    """

    def __init__(self, options: UpkeepOptions) -> None:
        config = options.weight_transfer()
        self._parent = Path((config and config.folder) or tempfile.gettempdir())
        self._own: Path | None = None
        self._held = contextlib.ExitStack()
        self._number = 0

    def make(self) -> Path:
        """Creates a folder.

        Raises:
            OSError: that is not possible.
        """
        if self._own is None:
            _remove_orphans(self._parent)
            self._own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._parent))
            self._held.callback(self.drop, self._own)
            new = self._own / f"new {_LOCK}"
            fcntl.flock(self._held.enter_context(new.open("w")), fcntl.LOCK_EX)
            new.rename(self._own / _LOCK)  # locked by the time that others see it
        self._number += 1
        made = self._own / str(self._number)
        made.mkdir()
        return made

    def close(self) -> None:
        """Removes all folders."""
        self._held.close()
        self._own = None

    def drop(self, folder: Path) -> None:
        """Removes a folder."""
        shutil.rmtree(folder, ignore_errors=True)

    def drop_all_but(self, kept: Container[Path | None]) -> None:
        """Removes all other folders."""
        for folder in self._own.iterdir() if self._own else ():
            if folder.is_dir() and folder not in kept:
                self.drop(folder)


def _remove_orphans(parent: Path) -> None:
    """Removes what processes that were killed have left behind."""
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open("w") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
