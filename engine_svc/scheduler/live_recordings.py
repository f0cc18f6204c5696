"""Tracks the recordings that go on while their sequences run: what comes of them is encoded piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

from engine_svc.plan import GrownRecording
from engine_svc.requests.recording import Recording
from engine_svc.requests.sequence import Sequence


class LiveRecordings:
    """The recordings of running sequences. Single-threaded."""

    def __init__(self, keys: Iterator[int]) -> None:
        """
        Args:
            keys: never used before.
        """
        self._keys = keys
        self._running: dict[int, tuple[Sequence, Recording]] = {}  # by the recording's key
        self._starting: list[int] = []  # keys of those that start in the next step, which cannot grow yet
        self._under_way: dict[int, tuple[Sequence, Recording, int]] = {}  # with the tokens that hear it, by its own key
        self._dropped: list[int] = []

    @property
    def sequences(self) -> list[Sequence]:
        """The running sequences whose recordings go on, or have not been heard to their ends."""
        return [sequence for sequence, _ in self._running.values()]

    @property
    def is_changing(self) -> bool:
        """Whether the next step must carry changes, or something is being encoded."""
        return bool(self._dropped or self._under_way) or any(each.has_more for _, each in self._running.values())

    def start(self, sequence: Sequence, key: int) -> None:
        """Notes that a sequence starts, whose recording has been encoded under a key as far as it has come."""
        if (recording := sequence.owner.recording) is not None:
            recording.start(key)
            self._running[key] = sequence, recording
            self._starting.append(key)

    def stop(self, sequence: Sequence) -> None:
        """Notes that a sequence has lost its slot."""
        recording = sequence.owner.recording
        if recording is None or not recording.key:
            return
        pieces = [key for key, (owner, _, _) in self._under_way.items() if owner is sequence]
        self._dropped += [recording.key, *pieces]
        for key in pieces:
            del self._under_way[key]
        del self._running[recording.key]
        recording.key = 0

    def take_changes(self) -> tuple[list[int], dict[int, GrownRecording]]:
        """What the next step drops, and begins to encode: see ImageChanges."""
        grown = {}
        for key, (sequence, recording) in self._running.items():
            if key not in self._starting and (audio := recording.take()) is not None:
                piece = next(self._keys)
                grown[piece] = GrownRecording(key, audio)
                self._under_way[piece] = sequence, recording, recording.tokens_of(audio)
        self._starting.clear()
        dropped, self._dropped = self._dropped, []
        return dropped, grown

    def end(self, key: int, error: str) -> list[tuple[Sequence, str]]:
        """Books a piece that has been encoded; returns its sequence and the error if it could not be."""
        sequence, recording, num_tokens = self._under_way.pop(key, (None, None, 0))
        if sequence is None or recording is None:  # dropped meanwhile
            return []
        if error:
            return [(sequence, error)]
        recording.num_heard += num_tokens
        return []
