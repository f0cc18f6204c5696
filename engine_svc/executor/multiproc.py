"""One process per rank. Plans and results travel as msgpack over socket pairs; a lost rank ends the executor."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from engine_svc.executor.base import Executor, ExecutorDead
from engine_svc.executor.channel import Channel
from engine_svc.executor.messages import Allocate, Answer, Command, Failed, Loaded, LoadModel, Masks, Step, Stepped
from engine_svc.parallel.layout import layout_of
from engine_svc.plan import EndedTransfer, KvCacheSpec, StepPlan, StepResult, TokenMasks
from quire.errors import StartupError
from quire.log import log_options
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions

_LOAD_SECONDS = 3600.0
_CLOSE_SECONDS = 10.0


class MultiprocExecutor(Executor):
    """All ranks sample from the same logits, so they agree without being told; rank 0 answers for all.

    A sequence that fails on one of them, even if on no other, has failed.
    """

    max_in_flight = 2

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: list[Channel] = []
        self._rendezvous: tempfile.TemporaryDirectory[str] | None = None
        self._step_seconds = _LOAD_SECONDS
        self._ends = TransferEnds()
        self._reads = AdapterReads()

    def load(self, model: ModelOptions, options: EngineOptions) -> KvCacheSpec:
        """See Executor.load."""
        self._step_seconds = options.watchdog.step_timeout_seconds
        self._rendezvous = tempfile.TemporaryDirectory(prefix="quire-")
        place = str(Path(self._rendezvous.name) / "group")
        ranks = range(layout_of(options.parallel).num_ranks)
        for _ in ranks:
            self._start_rank()
        commands: list[Command] = [LoadModel(model, options, rank, place, log_options()) for rank in ranks]
        try:
            answers = self._call(commands, _LOAD_SECONDS)
        except ExecutorDead as error:
            raise StartupError(f"A rank of the model ended while loading: {error}. See the log above.") from error
        specs = [answer.spec for answer in answers if isinstance(answer, Loaded)]
        return msgspec.structs.replace(  # a draft may run on some ranks only
            min(specs, key=lambda spec: spec.available_bytes),
            bytes_per_block=max(spec.bytes_per_block for spec in specs),
            draft_bytes_per_block=max(spec.draft_bytes_per_block for spec in specs),
        )

    def _start_rank(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(  # noqa: S603  (our own command line, no shell)
                [sys.executable, "-m", "engine_svc.executor.rank", str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        self._processes.append(process)
        self._channels.append(Channel(ours))

    def allocate(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        """See Executor.allocate."""
        self._call([Allocate(num_blocks, num_host_blocks)] * len(self._channels), self._step_seconds)

    def submit(self, plan: StepPlan) -> None:
        """See Executor.submit."""
        self._reads.forget(plan.adapters.dropped)
        self._send([Step(plan)] * len(self._channels))

    def send_masks(self, masks: TokenMasks) -> None:
        """See Executor.send_masks."""
        self._send([Masks(masks)] * len(self._channels))

    def collect(self) -> StepResult:
        """See Executor.collect."""
        answers = self._receive(self._step_seconds)
        results = [answer.result for answer in answers if isinstance(answer, Stepped)]
        if len(results) < len(answers):
            raise ExecutorDead(f"{len(answers) - len(results)} ranks answered something else to a step")
        return self._reads.agree(results, self._ends.agree(results, agree(results)))

    def _call(self, commands: list[Command], timeout: float) -> list[Answer]:
        """Sends each rank its command and waits for all answers; raises as `_receive`."""
        self._send(commands)
        return self._receive(timeout)

    def _send(self, commands: list[Command]) -> None:
        with self._noticing_death():
            for channel, command in zip(self._channels, commands, strict=True):
                channel.send(command)

    def _receive(self, timeout: float) -> list[Answer]:
        """The next answer of each rank.

        Raises:
            StartupError: a rank says so.
            ExecutorDead: a rank failed, is gone or does not answer: the others wait for it in a collective for good.
        """
        answers: list[Answer] = []
        with self._noticing_death():
            for channel in self._channels:
                answers.append(channel.receive(Answer, timeout))
                if isinstance(answers[-1], Failed):
                    break
        for answer in answers:
            if isinstance(answer, Failed):
                raise StartupError(answer.message) if answer.startup else ExecutorDead(answer.message)
        return answers

    @contextlib.contextmanager
    def _noticing_death(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError) as error:  # a TimeoutError is an OSError
            codes = [process.poll() for process in self._processes]
            raise ExecutorDead(f"a rank process is gone or stuck (exit codes {codes}): {error!r}") from error

    def close(self) -> None:
        """See Executor.close."""
        for channel in self._channels:
            channel.close()
        for process in self._processes:
            try:
                process.wait(_CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._channels, self._processes = [], []
        if self._rendezvous is not None:
            with contextlib.suppress(OSError):
                self._rendezvous.cleanup()


class TransferEnds:
    """Each rank moves its part of a block, and is done with it in a step of its own: a transfer ends with the last."""

    def __init__(self) -> None:
        self._reported: dict[int, dict[int, int]] = {}  # by key and rank, how many blocks were moved

    def agree(self, results: list[StepResult], joint: StepResult) -> StepResult:
        """The joint result with the transfers that have ended on all ranks; the blocks that all of them have moved."""
        if not any(result.ended_transfers for result in results):
            return joint
        for rank, result in enumerate(results):
            for end in result.ended_transfers:
                self._reported.setdefault(end.key, {})[rank] = end.num_blocks
        complete = [key for key, reported in self._reported.items() if len(reported) == len(results)]
        ended = [EndedTransfer(key, min(self._reported.pop(key).values())) for key in complete]
        return msgspec.structs.replace(joint, ended_transfers=ended)


class AdapterReads:
    """Each rank reads its part of an adapter: it is read with the last, and not where one of them cannot read it."""

    def __init__(self) -> None:
        self._reported: dict[int, dict[int, str]] = {}  # by key and rank, why it could not be read, or nothing

    def forget(self, keys: Iterable[int]) -> None:
        """Of adapters that are dropped, nothing is reported any more."""
        for key in keys:
            self._reported.pop(key, None)

    def agree(self, results: list[StepResult], joint: StepResult) -> StepResult:
        """The joint result with the adapters that all ranks have read by now."""
        for rank, result in enumerate(results):
            for key, why in result.read_adapters.items():
                self._reported.setdefault(key, {})[rank] = why
        complete = [key for key, reported in self._reported.items() if len(reported) == len(results)]
        read = {key: max(self._reported.pop(key).values()) for key in complete}
        return joint if read == joint.read_adapters else msgspec.structs.replace(joint, read_adapters=read)


def agree(results: list[StepResult]) -> StepResult:
    """Rank 0's result, without the sequences that failed on any rank."""
    first = results[0]
    failed = {slot: message for result in reversed(results) for slot, message in result.failed_slots.items()}
    if failed.keys() == first.failed_slots.keys():
        return first
    sampled = zip(first.sampled_slots, first.sampled_token_ids, strict=True)
    kept = {slot: run for slot, run in sampled if slot not in failed}
    return msgspec.structs.replace(
        first, sampled_slots=list(kept), sampled_token_ids=list(kept.values()), failed_slots=failed
    )
