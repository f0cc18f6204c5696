"""Tracks which images the ranks have encoded, and which sequences wait for theirs.

Ranks encode images beside their steps, so that an image of megapixels does not hold up the streams that are running. A
sequence starts once all images that it will compute are encoded. Until then it is set aside, so that it does not block
the queue, and is queued again afterwards. What is encoded stays with the ranks as long as it fits, for sequences with
the same image; once a sequence has started, it no longer depends on that.

An image that names a worker which encodes it is pulled from there (media_pulls.py), and encoded here if it does not
come.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from engine_svc.plan import ImageChanges
from engine_svc.requests.sequence import Sequence
from engine_svc.scheduler.live_recordings import LiveRecordings
from engine_svc.scheduler.media_pulls import MediaPulls, PullMedia
from quire.images import Image


class _Entry:
    """An image that is encoded, or that sequences wait for."""

    __slots__ = ("image", "is_pulled", "is_ready", "key", "num_users", "used")

    def __init__(self, image: Image) -> None:
        self.image = image
        self.key = 0  # identifies its encoding on the ranks; 0 until it is begun
        self.is_ready = False
        self.is_pulled = False  # another worker has encoded it
        self.num_users = 0  # sequences that have not started yet
        self.used = 0  # logical time of the last use; greater is later


class ImageEncodings:
    """The images of sequences that have not started, and those encoded last. Single-threaded unless a method says
    otherwise."""

    def __init__(self, most_tokens: int = 0, frames_per_token: int = 0, pull: PullMedia | None = None) -> None:
        """
        Args:
            most_tokens: tokens of all images that may be encoded or being encoded, unless one sequence needs more.
            frames_per_token: see ModelFacts. A sequence that hears a recording needs it to its own end.
            pull: has images encoded by other workers; None if this one encodes all.
        """
        self._most_tokens, self._frames_per_token = most_tokens, frames_per_token
        self._entries: dict[bytes, _Entry] = {}  # by the image's digest
        self._needed: dict[Sequence, list[_Entry]] = {}  # of sequences that have not started
        self._aside: dict[Sequence, None] = {}
        self._under_way: dict[int, _Entry] = {}  # by key
        self._keys = itertools.count(1)
        self._uses = itertools.count(1)
        self._dropped: list[int] = []
        self._begun: dict[int, Image] = {}
        self._pulls = MediaPulls(pull)
        self.recordings = LiveRecordings(self._keys)
        self.num_encoded = self.num_pulled = 0  # since the start

    # Sequences.

    def admit(self, sequence: Sequence, num_computed_tokens: int) -> bool:
        """Whether a sequence may start that finds so many tokens computed; else sets it aside."""
        images = [image for image in sequence.owner.request.images if self._end(image) > num_computed_tokens]
        if not images:
            self._release(sequence)
            return True
        entries = list({image.digest: self._entry(image) for image in images}.values())
        for entry in entries:
            entry.num_users += 1
            entry.used = next(self._uses)
        self._release(sequence)
        self._needed[sequence] = entries
        if all(entry.is_ready for entry in entries):
            return True
        self._aside[sequence] = None
        self._begin_missing()
        return False

    def start(self, sequence: Sequence, num_computed_tokens: int) -> list[int]:
        """The keys of the images of an admitted sequence that starts, 0 for those that it finds computed."""
        images = sequence.owner.request.images
        keys = [self._entries[each.digest].key if self._end(each) > num_computed_tokens else 0 for each in images]
        if sequence.owner.recording is not None:  # from now on, it is the sequence's alone
            del self._entries[images[0].digest]
            self.recordings.start(sequence, keys[0])
        self._release(sequence)
        return keys

    def forget(self, sequence: Sequence) -> bool:
        """Removes a sequence that has not started; returns whether it was set aside."""
        was_aside = sequence in self._aside
        self._aside.pop(sequence, None)
        self._release(sequence)
        return was_aside

    @property
    def set_aside(self) -> Iterable[Sequence]:
        """The sequences that are set aside. May be read from any thread."""
        return list(self._aside)

    @property
    def num_set_aside(self) -> int:
        """Number of sequences that are set aside. May be read from any thread."""
        return len(self._aside)

    def settle(self) -> list[Sequence]:
        """The sequences that no longer wait, at the beginning of a step; each must call `admit` again."""
        freed = [each for each in self._aside if all(entry.is_ready for entry in self._needed[each])]
        for sequence in freed:
            del self._aside[sequence]
        if self._aside:
            self._begin_missing()
        return freed

    # Ranks.

    @property
    def is_changing(self) -> bool:
        """Whether the next step must carry changes, or images are being encoded."""
        return bool(self._dropped or self._under_way) or self.recordings.is_changing

    def take_changes(self) -> ImageChanges:
        """Returns the changes that the next step begins with, and clears them."""
        received, missing = self._pulls.take()
        for key in received:
            self._under_way[key].is_pulled = True
        dropped, grown = self.recordings.take_changes()
        changes = ImageChanges(self._dropped + dropped, {**self._begun, **missing}, dict(received), grown)
        self._dropped, self._begun = [], {}
        return changes

    @property
    def num_failed_pulls(self) -> int:
        """Images that other workers were asked for in vain, since the start."""
        return self._pulls.num_failed

    def end(self, encoded: Mapping[int, str]) -> list[tuple[Sequence, str]]:
        """Books encodings that have ended.

        Args:
            encoded: key → error, empty on success.

        Returns:
            The sequences that need an image which could not be encoded, each with the error.
        """
        failed: list[tuple[Sequence, str]] = []
        for key, error in encoded.items():
            entry = self._under_way.pop(key, None)
            if entry is None:  # of a recording that goes on, or dropped meanwhile
                failed += self.recordings.end(key, error)
                continue
            if error:
                failed += [(sequence, error) for sequence, needed in self._needed.items() if entry in needed]
                self._drop(entry)
            else:
                entry.is_ready = True
                self.num_pulled += entry.is_pulled
                self.num_encoded += not entry.is_pulled
        return failed

    def redo(self, changes: ImageChanges) -> None:
        """Schedules the changes of a failed step again: it is unknown which of them were applied."""
        self._dropped += changes.dropped
        for entry in list(self._under_way.values()):  # reports may have been lost with the step
            self._drop(entry)

    def forget_memory(self) -> None:
        """Drops all encoded images; each is encoded again when it is needed."""
        for entry in list(self._entries.values()):
            self._drop(entry)

    def check(self, waiting: Iterable[Sequence]) -> None:
        """Verifies the bookkeeping.

        Args:
            waiting: all sequences that have not started.

        Raises:
            RuntimeError: it is inconsistent.
        """
        if not self._needed.keys() <= set(waiting) or not self._aside.keys() <= self._needed.keys():
            raise RuntimeError("images are kept for sequences that do not wait")
        for entry in self._entries.values():
            if entry.num_users != sum(entry in needed for needed in self._needed.values()):
                raise RuntimeError("an image has another number of users than need it")
            if not (entry.num_users or entry.is_ready):
                raise RuntimeError("an image is remembered that nobody needs")
            if (entry.key in self._under_way) == (entry.is_ready or not entry.key):
                raise RuntimeError("images are being encoded that are encoded, or begun and not encoded")

    def _entry(self, image: Image) -> _Entry:
        entry = self._entries.setdefault(image.digest, _Entry(image))
        entry.image = image  # the latest one, as the worker that encodes it may have changed
        return entry

    def _release(self, sequence: Sequence) -> None:
        """Removes a sequence from the users of its images."""
        for entry in self._needed.pop(sequence, ()):
            entry.num_users -= 1
            if not (entry.num_users or entry.is_ready):
                self._drop(entry)
        self._trim()

    def _begin_missing(self) -> None:
        """Begins to encode what sequences wait for, in their order, as far as there is room.

        The first one never waits for the others: what is encoded for these alone makes room, or none would ever start.
        """
        for place, sequence in enumerate(sorted(self._aside, key=lambda each: each.order)):
            own = self._needed[sequence]
            missing = [entry for entry in own if not entry.key]
            if missing and not self._has_room(missing, own):
                if place:
                    break
                self._drop_for(own)
                if not self._has_room(missing, own):
                    break
            for entry in missing:
                entry.key = next(self._keys)
                entry.is_pulled = False
                self._under_way[entry.key] = entry
                if not self._pulls.begin(entry.key, entry.image):
                    self._begun[entry.key] = entry.image

    def _drop_for(self, own: list[_Entry]) -> None:
        """Drops all that is encoded for sequences that are set aside, and for no others, apart from `own`."""
        others = [needed for sequence, needed in self._needed.items() if sequence not in self._aside]
        kept = {id(entry) for needed in (own, *others) for entry in needed}
        for entry in list(self._entries.values()):
            if entry.is_ready and id(entry) not in kept:
                self._drop(entry)

    def _has_room(self, missing: list[_Entry], own: list[_Entry]) -> bool:
        """Whether images may be begun: they fit, or nothing else is kept but what the same sequence needs."""
        more = sum(self._count(entry) for entry in missing)
        self._trim(more)
        others = [entry for entry in self._entries.values() if entry.key and entry not in own]
        return not others or self._num_tokens() + more <= self._most_tokens

    def _trim(self, more: int = 0) -> None:
        """Drops images that nobody needs, those used last at the end, until they leave room for so many tokens; the
        last one only if the room is needed."""
        while self._num_tokens() + more > self._most_tokens:
            unused = [entry for entry in self._entries.values() if not entry.num_users]
            if not unused or (len(self._entries) == 1 and not more):
                return
            self._drop(min(unused, key=lambda entry: entry.used))

    def _num_tokens(self) -> int:
        return sum(self._count(entry) for entry in self._entries.values() if entry.key)

    def _count(self, entry: _Entry) -> int:
        """The tokens that get something of an image."""
        each = self._frames_per_token
        return entry.image.num_frames // each if each else entry.image.num_tokens

    def _end(self, image: Image) -> int:
        """The position after the last token that gets something of an image."""
        each = self._frames_per_token
        return image.num_frames // each if each else image.end

    def _drop(self, entry: _Entry) -> None:
        """Removes an image from the ranks; forgets it if nobody needs it."""
        if entry.key and not self._pulls.cancel(entry.key) and self._begun.pop(entry.key, None) is None:
            self._dropped.append(entry.key)
        self._under_way.pop(entry.key, None)
        entry.key, entry.is_ready = 0, False
        if not entry.num_users:
            self._entries.pop(entry.image.digest, None)
