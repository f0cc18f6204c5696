"""EngineAdminService: parses and checks operator commands, and passes them to the worker's administration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import grpc

from engine_svc.core.administration import Administration
from engine_svc.core.weight_transfer import Packing, Trainer
from engine_svc.service.convert import from_status
from engine_svc.upkeep import SentTensor
from engine_svc.worker import EngineWorker
from quire.errors import InvalidRequest
from quire.sleep import PARTS, WEIGHTS, Leaving, SleepLevel
from quire.v1 import admin_pb2, admin_pb2_grpc, engine_pb2

_LEAVING: Mapping[int, Leaving] = MappingProxyType(
    {
        admin_pb2.LEAVING_ABORT: Leaving.ABORT,
        admin_pb2.LEAVING_WAIT: Leaving.WAIT,
        admin_pb2.LEAVING_KEEP: Leaving.KEEP,
    }
)


class EngineAdminServicer(admin_pb2_grpc.EngineAdminServiceServicer):
    """The method of protos/quire/v1/admin.proto that engines implement."""

    def __init__(self, worker: EngineWorker) -> None:
        self._worker = worker

    async def Administer(
        self, request: admin_pb2.EngineAdminServiceAdministerRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.EngineAdminServiceAdministerResponse:
        self._worker.load_now()  # raises if there is no engine yet
        outcome = await _Obedience(self._worker).obey(request.command)
        outcome.status.CopyFrom(from_status(self._worker.load_now().status))
        outcome.num_ranks = self._worker.num_ranks
        return admin_pb2.EngineAdminServiceAdministerResponse(outcome=outcome)


class _Obedience:
    """Carries out one command. Has one method per command, with the command's name."""

    def __init__(self, worker: EngineWorker) -> None:
        self._worker = worker
        self._administration: Administration = worker.administration
        self._outcome = admin_pb2.AdminOutcome()

    async def obey(self, command: admin_pb2.AdminCommand) -> admin_pb2.AdminOutcome:
        """Carries out the command and returns the outcome.

        Raises:
            InvalidRequest: a parameter of the command is invalid.
            QuireError: raised by the administration.
        """
        name = command.WhichOneof("command")
        if name is not None:
            method: Callable[[object], Awaitable[None]] = getattr(self, name)
            await method(getattr(command, name))
        return self._outcome

    async def reset_prefix_cache(self, command: admin_pb2.ResetPrefixCache) -> None:
        await self._administration.reset_prefix_cache(preempts=command.preempts_running)

    async def reset_encoder_cache(self, command: admin_pb2.ResetEncoderCache) -> None:
        await self._administration.reset_encoder_cache()

    async def pause(self, command: admin_pb2.Pause) -> None:
        await self._administration.pause(
            _leaving(command.leaving), command.wait_ms / 1000, clears_cache=command.clears_cache
        )

    async def resume(self, command: admin_pb2.Resume) -> None:
        await self._administration.resume()

    async def sleep(self, command: admin_pb2.Sleep) -> None:
        if command.level not in list(SleepLevel):
            raise InvalidRequest(f"level is {command.level}; it must be 0, 1 or 2.", parameter="level")
        await self._administration.sleep(SleepLevel(command.level), _leaving(command.leaving), command.wait_ms / 1000)

    async def wake_up(self, command: admin_pb2.WakeUp) -> None:
        for part in command.parts:
            if part not in PARTS:
                raise InvalidRequest(
                    f"{part[:64]!r} is not a part of the memory; the parts are {', '.join(PARTS)}.", parameter="tags"
                )
        before = self._administration.status
        if before.sleep_level == SleepLevel.WEIGHTS_FORGOTTEN and WEIGHTS in before.asleep:
            await self._worker.look_at_weights()  # before anything is computed, which others may use by the fingerprint
        await self._administration.wake_up(command.parts or PARTS)

    async def update_weights(self, command: admin_pb2.UpdateWeights) -> None:
        await self._worker.update_weights(
            command.model_path, command.weight_version, _leaving(command.leaving), command.wait_ms / 1000
        )

    async def join_trainer(self, command: admin_pb2.JoinTrainer) -> None:
        trainer = Trainer(
            command.master_address, command.master_port, command.first_rank, command.world_size,
            _packing(command.packing),
        )  # fmt: skip
        await self._worker.join_trainer(trainer, command.wait_ms / 1000)

    async def start_weight_update(self, command: admin_pb2.StartWeightUpdate) -> None:
        await self._worker.transfer.start(of_draft=command.of_draft)

    async def receive_weights(self, command: admin_pb2.ReceiveWeights) -> None:
        tensors = [SentTensor(each.name, each.dtype, tuple(each.shape)) for each in command.tensors]
        packing = _packing(command.packing) if command.HasField("packing") else None
        await self._worker.transfer.receive(tensors, packing, command.wait_ms / 1000)

    async def finish_weight_update(self, command: admin_pb2.FinishWeightUpdate) -> None:
        await self._worker.finish_weight_update(
            command.weight_version, _leaving(command.leaving), command.wait_ms / 1000
        )

    async def name_weights(self, command: admin_pb2.NameWeights) -> None:
        await self._worker.name_weights(command.weight_version)

    async def digest_weights(self, command: admin_pb2.DigestWeights) -> None:
        self._outcome.digests.update(await self._worker.digest_weights())

    async def release_cache(self, command: admin_pb2.ReleaseCache) -> None:
        await self._administration.release_cache()

    async def drain(self, command: admin_pb2.Drain) -> None:
        self._administration.drain(wanted=True)

    async def undrain(self, command: admin_pb2.Undrain) -> None:
        self._administration.drain(wanted=False)

    async def abort(self, command: engine_pb2.AbortRequest) -> None:
        self._outcome.aborted_requests = self._worker.loop.abort_requests(command.request_ids)

    async def start_profile(self, command: admin_pb2.StartProfile) -> None:
        await self._administration.start_profile()

    async def stop_profile(self, command: admin_pb2.StopProfile) -> None:
        self._outcome.files.extend(await self._administration.stop_profile())


def _leaving(value: int) -> Leaving:
    if value not in _LEAVING:
        raise InvalidRequest("Set what happens to the requests: abort, wait or keep.", parameter="mode")
    return _LEAVING[value]


def _packing(message: admin_pb2.Packing) -> Packing:
    return Packing(message.buffer_bytes if message.is_packed else None)
