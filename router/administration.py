"""Passes operators' commands on to all workers, or to some."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

import grpc

from quire.errors import NotFound, QuireError, Unavailable
from quire.rpc.settings import CALL_SECONDS
from quire.rpc.status import to_request_error
from quire.v1 import admin_pb2, admin_pb2_grpc
from router.workers.remote import RemoteWorker

logger = logging.getLogger(__name__)

# Seconds of the caller's deadline kept back for the answer to reach it.
_MARGIN_SECONDS = 1.0
# Commands that workers do not get which only encode, unless they are named: they keep the weights that they have.
_OF_WEIGHTS = (
    "update_weights", "join_trainer", "start_weight_update", "receive_weights", "finish_weight_update", "name_weights",
    "digest_weights",
)  # fmt: skip


class RouterAdminServicer(admin_pb2_grpc.RouterAdminServiceServicer):
    """Implements RouterAdminService of protos/quire/v1/admin.proto. No state is kept here: workers report it
    themselves."""

    def __init__(self, workers: Callable[[], Collection[RemoteWorker]]) -> None:
        self._workers = workers

    async def Administer(
        self, request: admin_pb2.RouterAdminServiceAdministerRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.RouterAdminServiceAdministerResponse:
        left = context.time_remaining()
        seconds = CALL_SECONDS if left is None else max(0.0, left - _MARGIN_SECONDS)
        workers, name = self._chosen(request.workers), request.command.WhichOneof("command")
        if name in _OF_WEIGHTS and not request.workers:
            workers = [worker for worker in workers if not worker.encodes_only]
        if name:
            logger.info("sending %s to %s", name, ", ".join(worker.address for worker in workers))
        outcomes = await asyncio.gather(*(_administer(worker, request.command, seconds) for worker in workers))
        return admin_pb2.RouterAdminServiceAdministerResponse(workers=outcomes)

    def _chosen(self, addresses: Sequence[str]) -> Sequence[RemoteWorker]:
        """
        Raises:
            NotFound: one of the addresses is no known worker.
            Unavailable: no worker is known.
        """
        known = {worker.address: worker for worker in self._workers() if not worker.retired}
        if not known:
            raise Unavailable("No engine worker is known; try again in a moment.")
        for address in addresses:
            if address not in known:
                raise NotFound(
                    f"There is no worker {address[:256]!r}; the workers are {', '.join(known)}.", parameter="worker"
                )
        return [known[address] for address in dict.fromkeys(addresses)] or list(known.values())


async def _administer(worker: RemoteWorker, command: admin_pb2.AdminCommand, seconds: float) -> admin_pb2.WorkerOutcome:
    try:
        outcome = await worker.administer(command, seconds)
    except QuireError as error:
        return admin_pb2.WorkerOutcome(address=worker.address, error=to_request_error(error))
    return admin_pb2.WorkerOutcome(address=worker.address, outcome=outcome)
