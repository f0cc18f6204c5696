"""Assigns requests to workers, and tracks which request runs where."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from quire.block_hash import block_keys
from quire.options.router import RouterOptions
from quire.rpc.images import goes_on
from router.clock import Clock
from router.index.prefix_index import PrefixIndex
from router.placement.decisions import Decision, Decisions, worth_keeping
from router.placement.encoders import Encoders
from router.placement.policies.base import Candidates, Counts, Policy
from router.placement.routed_request import RoutedRequest
from router.workers.assignment import Assignment
from router.workers.base import Worker
from router.workers.ready_set import Naming, Places, ReadySet, naming_of
from router.workers.ready_workers import ReadyWorkers

if TYPE_CHECKING:
    from quire.v1 import common_pb2

# Most blocks of a prompt that the router hashes, if its caller has not: a few milliseconds of work.
_MOST_HASHED = 4096
# A worker has nearly as much of a request cached as another one if it has this share of it.
_NEARLY = 0.8

Request = TypeVar("Request", bound=RoutedRequest)


class PlacementMetrics(Protocol):
    """Receives measurements of placements."""

    def placed(self, seconds: float) -> None:
        """Records the time that a placement decision took."""

    def predicted(self, predicted: int, found: int, block_size: int) -> None:
        """Records how many cached tokens were predicted for a request, and how many the worker found."""


class PlacementTable(Generic[Request]):
    """The requests that are on a worker now, by their worker stream id."""

    def __init__(
        self, ready_workers: ReadyWorkers, index: PrefixIndex, options: RouterOptions, policy: Policy, clock: Clock,
        metrics: PlacementMetrics, encoders: Encoders | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            encoders: None if no worker encodes for others.
        """
        self._ready_workers = ready_workers
        self._index = index
        self._policy_name = options.routing_policy
        self._min_prefill_tokens = options.prefill_worker_min_tokens
        self._policy = policy
        self._clock = clock
        self._metrics = metrics
        self._encoders = encoders
        self._ids = itertools.count(1)  # unique across workers
        self._streams: dict[int, Request] = {}
        self.decisions = Decisions()
        # `self.find(worker_stream_id)`: the request, or None. A bound method of the table, for the hot path.
        self.find = self._streams.get

    def __len__(self) -> int:
        return len(self._streams)

    def on_worker(self, worker: Worker) -> list[Request]:
        """The requests that run on this worker."""
        return [stream for stream in self._streams.values() if stream.worker is worker]

    def require_ready(self, model: str) -> None:
        """Checks that some worker is ready for the model.

        Raises:
            QuireError: no worker for the model is ready.
        """
        self._ready_workers.gather(model)

    def patience(self, model: str) -> float:
        """Seconds that a new request may wait where no worker is ready."""
        return self._ready_workers.patience(model)

    def add(self, stream: Request, queued_seconds: float) -> bool:
        """Sends the request to the worker that the policy picks; returns False when all are full.

        Args:
            queued_seconds: how long it has waited for workers, over all attempts; kept with the decision.

        Raises:
            QuireError: no worker can serve it; nothing has changed.
        """
        ready = self._ready_workers.gather(stream.request.model)
        places = self._suitable(stream, ready)
        if not len(places):
            return False
        started = time.perf_counter()
        candidates = self._candidates(stream, ready)
        phase, hands_over = self._next_phase(stream, places, ready, candidates.known_tokens)
        if phase is not None:
            places = places[phase[places]]
            if not len(places):
                return False
        if len(places) < len(candidates):
            candidates = candidates.take(places)
        place = self._policy.choose(stream.request, candidates)
        seconds = time.perf_counter() - started
        worker = ready.workers[places[place]]
        kept = worth_keeping(stream.request, candidates, self._policy.weights, place)
        decision = Decision(
            stream.request, time.time(), self._policy_name, self._policy.weights, stream.attempts + 1, seconds,
            queued_seconds, worker.address,
            [ready.workers[places[each]].address for each in kept], candidates.take(kept),
        )  # fmt: skip
        self._start(stream, worker, int(candidates.known_tokens[place]), hands_over=hands_over)
        self._metrics.placed(seconds)
        self.decisions.record(decision)
        return True

    def pick(self, streams: Sequence[Request]) -> int | None:
        """Index of the first request of which a worker with room has nearly as much cached as any worker; 0 if there is
        none, None if no worker has room.

        Args:
            streams: that wait for a worker for the same model.
        """
        if len(streams) == 1 or not self._policy.uses_cache:
            return 0
        ready = self._ready_workers.gather(streams[0].request.model)
        for index, stream in enumerate(streams):
            places = self._suitable(stream, ready)
            if not len(places):
                return 0 if index else None
            known = self._candidates(stream, ready).known_tokens
            most = known.max()
            phase, _ = self._next_phase(stream, places, ready, known)
            if phase is not None:
                places, most = places[phase[places]], known[phase].max(initial=0)
            if len(places) and known[places].max() >= _NEARLY * most:
                return index
        return 0

    def mark_started(self, stream: RoutedRequest) -> None:
        """Records that the request's first delta from its worker has arrived."""
        stream.started = True
        stream.fruitless = 0
        self._settle(stream, computed=True)

    def remove(self, stream: RoutedRequest) -> None:
        """Takes the request off its worker, if it is on one. Sends the worker nothing."""
        worker = stream.worker
        if worker is None:
            return
        del self._streams[stream.worker_stream_id]
        self._settle(stream, computed=False)
        worker.load.ended(stream.request.sequences)
        stream.worker = None

    def check_prediction(self, stream: RoutedRequest, cached_tokens: int) -> None:
        """Compares the predicted cached tokens with what the worker reports to have found."""
        if stream.predicted_tokens is not None and stream.attempts == 1 and stream.worker and stream.worker.model_info:
            self._metrics.predicted(stream.predicted_tokens, cached_tokens, stream.worker.model_info.block_size)

    def _suitable(self, stream: RoutedRequest, ready: ReadySet) -> Places:
        """Indices of the workers with room. A request that moves avoids the worker it was on, and prefers workers of
        the same make."""
        room = ready.room(is_prefilled=stream.is_prefilled)
        if stream.avoid is None and not stream.make:
            return room.nonzero()[0]
        whom = np.ones(len(room), np.bool_)
        if stream.avoid in ready.workers and (len(room) > 1 or self._clock.time() < stream.avoid_until):
            whom[ready.workers.index(stream.avoid)] = False
        if stream.make:
            same = whom & ready.of_make(stream.make)
            whom = same if same.any() else whom
        return (whom & room).nonzero()[0]

    def _next_phase(
        self, stream: RoutedRequest, places: Places, ready: ReadySet, known: Counts
    ) -> tuple[NDArray[np.bool_] | None, bool]:
        """Which of the workers the request goes to next: to compute its prompt for others, or to generate. While none
        of them has room, it waits: generating workers are not disturbed by long prompts, and prompts are not computed
        that nobody has room to continue.

        Args:
            places: of the workers with room.
            known: how many tokens of the request each worker has cached.

        Returns:
            For each worker whether it may be picked, None if any may; and whether it hands the request over.
        """
        generation, prefills = stream.assignment.generation, ready.prefills
        if generation.remote_decode:
            return ready.lets_pull if prefills is None else ready.lets_pull & prefills, False
        if generation.kv_source and ready.pulls.any():
            return ready.pulls, False
        if prefills is None:
            return None, False
        generating = places[~prefills[places]]
        # Log-probabilities of the prompt are reported as it is computed, and its blocks are not looked up. A request
        # that was on a worker already has been handed over, or taken from one that is lost: no need to risk another.
        # A recording that goes on stays where it is heard.
        is_whole = stream.attempts > 0 or generation.sampling.HasField("prompt_logprobs") or goes_on(generation)
        if is_whole or not len(generating):
            return ~prefills, False
        missing = stream.request.known_tokens - known[generating].max()
        hands_over = bool(missing >= self._min_prefill_tokens)
        return prefills if hands_over else ~prefills, hands_over

    def _candidates(self, stream: RoutedRequest, ready: ReadySet) -> Candidates:
        """All ready workers."""
        return Candidates(ready.figures(), ready.homes, *self._coverage(stream, ready), ready.lacking_adapter())

    def _coverage(self, stream: RoutedRequest, ready: ReadySet) -> tuple[Counts, Counts | None, Counts | None]:
        """How much of the request each ready worker has cached: tokens on the device, tokens in host memory, and tokens
        that it would compute although another worker is about to compute them."""
        device, host = np.zeros(len(ready.workers)), np.zeros(len(ready.workers))
        # Range of the prompt's tokens that are about to be computed somewhere, and are not cached anywhere yet.
        start = stop = 0
        for caches in ready.caches(self._index) if self._policy.uses_cache else ():
            block_size, _ = caches.naming
            keys = self._keys(stream, caches.naming)
            if not keys:
                continue
            on_device, in_host = self._index.cover(keys, caches.members)
            stored, expected = self._index.computing(keys, caches.members, on_device)
            stored = stored if expected else int(on_device.max())
            start, stop = max(start, stored * block_size), max(stop, expected * block_size)
            # The last token is always computed, because its logits are needed.
            most = (stream.request.known_tokens - 1) // block_size
            on_device = np.minimum(on_device, most)
            device[caches.places] = on_device * block_size
            if in_host is not None:
                host[caches.places] = np.minimum(in_host, most - on_device) * block_size
        duplicates = np.maximum(stop - np.maximum(device + host, start), 0) if stop > start else None
        return device, host if host.any() else None, duplicates

    def _keys(self, stream: RoutedRequest, naming: Naming) -> Sequence[int]:
        """Keys of the full blocks of prompt and output; empty for a request that may not use the prefix cache."""
        if stream.assignment.generation.sampling.HasField("prompt_logprobs"):
            return ()
        if naming not in stream.keys:
            stream.keys[naming] = _block_keys(stream.assignment, stream.request.prompt_tokens, *naming)
        return stream.keys[naming]

    def _start(self, stream: Request, worker: Worker, known: int, *, hands_over: bool) -> None:
        """
        Args:
            known: tokens of the request that the worker has cached.
            hands_over: see Worker.start_generation.
        """
        stream_id = next(self._ids)
        assignment = stream.assignment
        if self._encoders is not None and (encoders := self._encoders.choose(assignment.generation, worker)):
            assignment = replace(assignment, encoders=encoders)
        worker.start_generation(stream_id, assignment, self._timeout_ms(stream), hands_over=hands_over)
        if stream.is_prefilled:
            known = stream.request.known_tokens - 1
        stream.attempts += 1
        stream.worker, stream.worker_stream_id, stream.started = worker, stream_id, False
        stream.prompt_tokens = stream.request.known_tokens
        stream.prefill_tokens = max(1, stream.prompt_tokens - known)
        adapter = stream.request.model if stream.request.model in worker.adapters else ""
        worker.load.placed(stream.request.sequences, stream.prompt_tokens, stream.prefill_tokens, adapter, stream_id)
        self._streams[stream_id] = stream
        stream.make = worker.make_for(stream.request.model)
        naming = naming_of(worker, stream.request.model)
        if keys := stream.keys.get(naming):
            stream.predicted_tokens = min(known, stream.request.prompt_tokens)
            stream.expected = self._index.expect(worker.blocks, keys, known // naming[0])

    def _settle(self, stream: RoutedRequest, computed: bool) -> None:
        """Ends the request's prefill: its prompt is computed, or will never be."""
        if stream.prefill_tokens and stream.worker is not None:
            stream.worker.load.prefilled(stream.prompt_tokens, stream.prefill_tokens)
            stream.prefill_tokens = 0
        if stream.expected is not None:
            self._index.settle(stream.expected, computed)
            stream.expected = None
            stream.keys.clear()

    def _timeout_ms(self, stream: RoutedRequest) -> int:
        """The time left for the request, in milliseconds; 0 means no deadline."""
        if stream.deadline is None:
            return 0
        return max(1, round((stream.deadline - self._clock.time()) * 1000))


def _block_keys(assignment: Assignment, prompt_tokens: int, block_size: int, adapter: str) -> Sequence[int]:
    """Keys of the request's full blocks: the caller's for the prompt if they fit, and those of the output if it has a
    single sequence."""
    generation = assignment.generation
    progress = generation.progress if assignment.progress is None else assignment.progress
    given = generation.prompt_block_keys
    fits = len(given) == prompt_tokens // block_size and _are_named(assignment, block_size, adapter)
    output = progress[0].token_ids if len(progress) == 1 else ()
    if fits and not output:
        return given
    if _has_content(generation):  # megabytes: only their caller hashes them
        return given if fits else ()
    tokens = [*generation.prompt_token_ids, *output][: _MOST_HASHED * block_size]
    found = block_keys(tokens, block_size, generation.cache_salt, adapter=adapter)
    return [*given, *found[len(given) :]] if fits else found


def _has_content(generation: common_pb2.Generation) -> bool:
    """Whether block keys depend on more than token ids."""
    return generation.HasField("prompt_embeds") or bool(generation.images)


def _are_named(assignment: Assignment, block_size: int, adapter: str) -> bool:
    """Whether the caller's block keys use this block size and adapter revision. They may be those of another revision
    of the adapter, or of another model behind the caller's alias."""
    generation = assignment.generation
    is_sure = not adapter and assignment.model == generation.model
    if generation.prompt_block_size != block_size or is_sure or _has_content(generation):
        return generation.prompt_block_size == block_size
    first = block_keys(generation.prompt_token_ids[:block_size], block_size, generation.cache_salt, adapter=adapter)
    return list(generation.prompt_block_keys[:1]) == first
