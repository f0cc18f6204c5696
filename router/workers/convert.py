"""Assignments to protobuf, and what workers tell of themselves from it."""

from __future__ import annotations

import hashlib

from quire.v1 import common_pb2
from router.workers.assignment import Assignment
from router.workers.state import Condition, State

# What differs between two attempts at the same request.
_CHANGES = (
    "request_id", "timeout_ms", "priority", "session_id", "progress", "prompt_block_keys", "prompt_block_size",
)  # fmt: skip
_MOST_BYTES_EACH = 16  # of the fields that are added, and of what surrounds a choice's tokens
_MOST_BYTES_A_TOKEN = 5


def most_bytes(assignment: Assignment) -> int:
    """What the worker gets is no larger."""
    progress = sum(_MOST_BYTES_EACH + _MOST_BYTES_A_TOKEN * len(each.token_ids) for each in assignment.progress or ())
    return assignment.generation.ByteSize() + len(assignment.model.encode()) + 4 * _MOST_BYTES_EACH + progress


def write_assignment(assignment: Assignment, timeout_ms: int, generation: common_pb2.Generation) -> None:
    """Makes a copy of what the caller sent the request that the worker gets."""
    generation.model, generation.timeout_ms = assignment.model, timeout_ms
    generation.sampling.seed = assignment.seed
    if assignment.progress is not None:
        del generation.progress[:]
        for choice in assignment.progress:
            generation.progress.add(token_ids=choice.token_ids, finished=choice.finished)


def identity(assignment: Assignment) -> bytes:
    """The same for two requests of which an engine makes the same. A tenant's requests need not have the same seed."""
    same = common_pb2.Generation()
    same.CopyFrom(assignment.generation)
    for field in _CHANGES:
        same.ClearField(field)
    same.model, same.sampling.seed = assignment.model, assignment.seed
    greedy = same.sampling.HasField("temperature") and same.sampling.temperature == 0
    if same.tenant or greedy:
        same.sampling.ClearField("seed")
    return hashlib.blake2b(same.SerializeToString(deterministic=True), digest_size=16).digest()


def held_by(status: common_pb2.EngineStatus) -> Condition | None:
    """What an operator has made of a worker; None where he leaves it alone."""
    if status.HasField("sleep_level"):
        gone = f", {' and '.join(status.asleep)} given back" if status.asleep else ""
        return Condition(State.PAUSED, f"it sleeps (level {status.sleep_level}{gone}) until /wake_up", held=True)
    if status.is_paused:
        return Condition(State.PAUSED, "it is paused until /resume", held=True)
    if status.is_draining:
        return Condition(State.DRAINING, "it takes no new requests until /undrain", held=True)
    return None
