"""Operator commands to the workers, sent through the first router that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.protocol.admin import INITIAL_WEIGHTS, AdminWorker, SentWeights, TrainerGroup
from gateway.services.fleet import Fleet
from quire.errors import QuireError
from quire.rpc.status import from_request_error
from quire.sleep import Leaving, SleepLevel
from quire.v1 import admin_pb2, engine_pb2

# Extra time for a worker's answer to travel back through a router after the worker's own timeout.
_MARGIN_SECONDS = 3.0
_LEAVING = {
    Leaving.ABORT: admin_pb2.LEAVING_ABORT,
    Leaving.WAIT: admin_pb2.LEAVING_WAIT,
    Leaving.KEEP: admin_pb2.LEAVING_KEEP,
}


@dataclass(frozen=True)
class Outcomes:
    """Results of a command: one entry per worker, and the errors of the workers that failed."""

    workers: Sequence[AdminWorker]
    errors: Sequence[QuireError] = ()


@dataclass(frozen=True)
class Administration:
    """Sends commands to some or all workers, with a timeout. All methods raise the error of the router, if any."""

    fleet: Fleet
    workers: Sequence[str]  # addresses; empty means all workers
    seconds: float

    async def status(self) -> Outcomes:
        """Returns the current state of the workers."""
        return await self._ask(admin_pb2.AdminCommand())

    async def pause(self, leaving: Leaving, *, clears_cache: bool) -> Outcomes:
        """See admin.proto, which documents this command and the ones below."""
        return await self._ask(
            admin_pb2.AdminCommand(
                pause=admin_pb2.Pause(leaving=_LEAVING[leaving], wait_ms=self._wait_ms, clears_cache=clears_cache)
            )
        )

    async def resume(self) -> Outcomes:
        return await self._ask(admin_pb2.AdminCommand(resume=admin_pb2.Resume()))

    async def sleep(self, level: SleepLevel, leaving: Leaving) -> Outcomes:
        return await self._ask(
            admin_pb2.AdminCommand(sleep=admin_pb2.Sleep(level=level, leaving=_LEAVING[leaving], wait_ms=self._wait_ms))
        )

    async def wake_up(self, parts: Collection[str]) -> Outcomes:
        return await self._ask(admin_pb2.AdminCommand(wake_up=admin_pb2.WakeUp(parts=parts)))

    async def update_weights(self, model_path: str, weight_version: str, leaving: Leaving) -> Outcomes:
        return await self._ask(
            admin_pb2.AdminCommand(
                update_weights=admin_pb2.UpdateWeights(
                    model_path=model_path, weight_version=weight_version, leaving=_LEAVING[leaving],
                    wait_ms=self._wait_ms,
                )
            )
        )  # fmt: skip

    async def join_trainer(self, group: TrainerGroup, workers: Sequence[AdminWorker]) -> Outcomes:
        """Has the ranks of all these workers join a trainer's group, one worker's after the other's."""
        asked, first_rank = [], group.rank_offset
        for worker in workers:
            join = admin_pb2.JoinTrainer(
                master_address=group.master_address, master_port=group.master_port, first_rank=first_rank,
                world_size=group.world_size, wait_ms=self._wait_ms, packing=_packing(group),
            )  # fmt: skip
            asked.append(replace(self, workers=[worker.worker])._ask(admin_pb2.AdminCommand(join_trainer=join)))
            first_rank += worker.num_ranks
        told = await asyncio.gather(*asked)
        return Outcomes([each for one in told for each in one.workers], [error for one in told for error in one.errors])

    async def start_weight_update(self, *, of_draft: bool) -> Outcomes:
        start = admin_pb2.StartWeightUpdate(of_draft=of_draft)
        return await self._ask(admin_pb2.AdminCommand(start_weight_update=start))

    async def receive_weights(self, sent: SentWeights) -> Outcomes:
        described = zip(sent.names, sent.dtype_names, sent.shapes, strict=True)
        tensors = [admin_pb2.SentTensor(name=name, dtype=dtype, shape=shape) for name, dtype, shape in described]
        receive = admin_pb2.ReceiveWeights(tensors=tensors, wait_ms=self._wait_ms)
        if sent.packed is not None:
            receive.packing.CopyFrom(_packing(sent))
        return await self._ask(admin_pb2.AdminCommand(receive_weights=receive))

    async def finish_weight_update(self, weight_version: str, leaving: Leaving) -> Outcomes:
        return await self._ask(
            admin_pb2.AdminCommand(
                finish_weight_update=admin_pb2.FinishWeightUpdate(
                    weight_version=weight_version, leaving=_LEAVING[leaving], wait_ms=self._wait_ms
                )
            )
        )

    async def name_weights(self, weight_version: str) -> Outcomes:
        return await self._ask(
            admin_pb2.AdminCommand(name_weights=admin_pb2.NameWeights(weight_version=weight_version))
        )

    async def digest_weights(self) -> tuple[Outcomes, Mapping[str, Mapping[str, str]]]:
        """Also returns the digests of each worker's tensors, by its address."""
        answer = await self._administer(admin_pb2.AdminCommand(digest_weights=admin_pb2.DigestWeights()))
        return _outcomes(answer), {each.address: dict(each.outcome.digests) for each in answer.workers}

    async def release_cache(self) -> Outcomes:
        return await self._ask(admin_pb2.AdminCommand(release_cache=admin_pb2.ReleaseCache()))

    async def drain(self, *, wanted: bool) -> Outcomes:
        if wanted:
            return await self._ask(admin_pb2.AdminCommand(drain=admin_pb2.Drain()))
        return await self._ask(admin_pb2.AdminCommand(undrain=admin_pb2.Undrain()))

    async def reset_prefix_cache(self, *, preempts: bool) -> Outcomes:
        reset = admin_pb2.ResetPrefixCache(preempts_running=preempts)
        return await self._ask(admin_pb2.AdminCommand(reset_prefix_cache=reset))

    async def reset_encoder_cache(self) -> Outcomes:
        return await self._ask(admin_pb2.AdminCommand(reset_encoder_cache=admin_pb2.ResetEncoderCache()))

    async def abort(self, request_ids: Collection[str]) -> Outcomes:
        return await self._ask(admin_pb2.AdminCommand(abort=engine_pb2.AbortRequest(request_ids=request_ids)))

    async def profile(self, *, wanted: bool) -> Outcomes:
        if wanted:
            return await self._ask(admin_pb2.AdminCommand(start_profile=admin_pb2.StartProfile()))
        return await self._ask(admin_pb2.AdminCommand(stop_profile=admin_pb2.StopProfile()))

    @property
    def _wait_ms(self) -> int:
        """How long a worker waits for its requests to end."""
        return round(self.seconds * 1000)

    async def _ask(self, command: admin_pb2.AdminCommand) -> Outcomes:
        return _outcomes(await self._administer(command))

    async def _administer(self, command: admin_pb2.AdminCommand) -> admin_pb2.RouterAdminServiceAdministerResponse:
        return await self.fleet.administer(command, self.workers, self.seconds + _MARGIN_SECONDS)


def _outcomes(answer: admin_pb2.RouterAdminServiceAdministerResponse) -> Outcomes:
    errors = [from_request_error(each.error) for each in answer.workers if each.HasField("error")]
    return Outcomes([_worker(each) for each in answer.workers], errors)


def _worker(told: admin_pb2.WorkerOutcome) -> AdminWorker:
    if told.HasField("error"):
        return AdminWorker(told.address, error=told.error.message)
    outcome, status = told.outcome, told.outcome.status
    return AdminWorker(
        told.address, status.is_draining, status.is_paused,
        status.sleep_level if status.HasField("sleep_level") else None,
        tuple(status.asleep), status.is_profiling, outcome.aborted_requests, tuple(outcome.files),
        status.weight_version or INITIAL_WEIGHTS, num_ranks=outcome.num_ranks,
    )  # fmt: skip


def _packing(given: TrainerGroup | SentWeights) -> admin_pb2.Packing:
    return admin_pb2.Packing(is_packed=bool(given.packed), buffer_bytes=given.packed_buffer_size_bytes)
