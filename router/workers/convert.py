"""Converts assignments to protobuf, and what workers report about themselves from it."""

from __future__ import annotations

import hashlib

from quire.v1 import common_pb2
from router.workers.assignment import Assignment
from router.workers.state import Condition, State

# Fields that differ between two attempts at the same request.
_CHANGES = (
    "request_id", "timeout_ms", "priority", "session_id", "progress", "prompt_block_keys", "prompt_block_size",
    "kv_source",
)  # fmt: skip
_MOST_BYTES_EACH = 16  # bound on each added field, and on the overhead of a choice's tokens
_MOST_BYTES_A_TOKEN = 5


def most_bytes(assignment: Assignment) -> int:
    """Upper bound on the size of the message that the worker gets."""
    progress = sum(_MOST_BYTES_EACH + _MOST_BYTES_A_TOKEN * len(each.token_ids) for each in assignment.progress or ())
    names = len(assignment.model.encode()) + len(assignment.kv_source.encode())
    encoders = sum(_MOST_BYTES_EACH + len(each.encode()) for each in assignment.encoders)
    return assignment.generation.ByteSize() + names + encoders + 5 * _MOST_BYTES_EACH + progress


def write_assignment(assignment: Assignment, timeout_ms: int, generation: common_pb2.Generation) -> None:
    """Turns a copy of the caller's request into the one that the worker gets."""
    generation.model, generation.timeout_ms = assignment.model, timeout_ms
    generation.sampling.seed = assignment.seed
    if assignment.kv_source:
        generation.kv_source = assignment.kv_source
    for image, encoder in zip(generation.images, assignment.encoders, strict=False):  # there may be none
        image.encoder = encoder
    if assignment.progress is not None:
        del generation.progress[:]
        for choice in assignment.progress:
            generation.progress.add(token_ids=choice.token_ids, finished=choice.finished)


def identity(assignment: Assignment) -> bytes:
    """A digest that is equal for two requests that an engine processes identically. The seeds of one tenant's requests
    may differ."""
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
    """The condition that an operator has put a worker in; None means that it was left alone."""
    if status.HasField("sleep_level"):
        gone = f", {' and '.join(status.asleep)} freed" if status.asleep else ""
        return Condition(State.PAUSED, f"it is asleep (level {status.sleep_level}{gone}) until /wake_up", held=True)
    if status.is_paused:
        return Condition(State.PAUSED, "it is paused until /resume", held=True)
    if status.is_draining:
        return Condition(State.DRAINING, "it takes no new requests until /undrain", held=True)
    return None
