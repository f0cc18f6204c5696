"""The grammars of an engine: compiled in separate threads, cached by key, and provided as followers of sequences."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from engine_svc.structured.follower import Endings, Follower
from quire.errors import DeadlineExceeded, FailedPrecondition, Internal, InvalidRequest, QuireError, StartupError
from quire.reasoning import ReasoningMarks
from quire.structured.base import Backend, Constraint, Grammar
from quire.structured.registry import make_backend
from quire.structured.threads import DeepThreads
from quire.structured.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

_THREADS = 2
_MOST_SECONDS = 30.0
# Limits of the cached grammars. A byte of a grammar may take some hundreds in memory.
_MOST_KEPT = 256
_MOST_KEPT_BYTES = 4 * 2**20
_PREPARED_BACKEND = "guidance"


@dataclass(frozen=True)
class Wanted:
    """Specification of the followers for a request's sequences."""

    constraint: Constraint
    endings: Endings
    marks: ReasoningMarks | None
    outputs: Mapping[int, Sequence[int]]  # choice → output of its sequence so far


@dataclass(frozen=True)
class Prepared:
    """Result of preparing a request's followers."""

    key: int
    followers: Mapping[int, Follower]  # by choice
    error: QuireError | None = None


class Grammars:
    """Provides followers; called from the engine's thread. Cached grammars are ready at once, others through `take`."""

    def __init__(
        self, vocab_size: int, load: Callable[[], Vocabulary], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            vocab_size: vocabulary size of the model, and of what `load` returns.
            load: loads the vocabulary; called once, in a thread. It may raise a QuireError.
        """
        self.vocab_size = vocab_size
        self._clock = clock
        self._wake: Callable[[], None] = lambda: None
        self._lock = threading.Lock()  # guards the cached grammars
        self._kept: OrderedDict[str, tuple[Grammar, int]] = OrderedDict()
        self._kept_bytes = 0
        self._backends: dict[str, Backend] = {}
        self._making = threading.Lock()
        self._vocabulary: Future[Vocabulary] = Future()
        self._waiting: dict[int, float] = {}  # key → deadline
        self._prepared: deque[Prepared] = deque()
        self._threads = DeepThreads("grammars", _THREADS)
        self._threads.submit(partial(self._load, load))

    @property
    def num_waiting(self) -> int:
        """Number of requests whose grammars are being compiled. May be read from any thread."""
        return len(self._waiting)

    @property
    def has_news(self) -> bool:
        """Whether `take` would return anything."""
        return bool(self._prepared) or bool(self._late())

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Registers a function to be called, from any thread, when there is something to take."""
        self._wake = wake

    def begin(self, key: int, wanted: Wanted, deadline: float | None = None) -> Mapping[int, Follower] | None:
        """Returns the followers if the grammar is cached; otherwise None, and `take` will return them.

        Args:
            key: identifies the request in `Prepared`.
            deadline: on the clock; the request does not need the followers after it.
        """
        with self._lock:
            known = self._kept.get(wanted.constraint.key)
        if known is not None and not any(wanted.outputs.values()):
            self._keep(wanted.constraint, known[0])
            return _followers(known[0], wanted)
        latest = self._clock() + _MOST_SECONDS
        self._waiting[key] = latest if deadline is None else min(deadline, latest)
        self._threads.submit(partial(self._prepare, key, wanted))
        return None

    def take(self) -> list[Prepared]:
        """Returns the waiting requests that have become ready, or have taken too long; each once."""
        found = []
        while self._prepared:
            prepared = self._prepared.popleft()
            if self._waiting.pop(prepared.key, None) is not None:
                found.append(prepared)
        for key in self._late():
            del self._waiting[key]
            error = DeadlineExceeded("The constraint could not be prepared in time.", parameter="constraint")
            found.append(Prepared(key, {}, error))
        return found

    def close(self) -> None:
        """Ends the threads."""
        self._threads.close()

    def _late(self) -> list[int]:
        now = self._clock() if self._waiting else 0.0
        return [key for key, deadline in self._waiting.items() if deadline <= now]

    # Everything below runs in the threads.

    def _load(self, load: Callable[[], Vocabulary]) -> None:
        """Loads the vocabulary and prepares the usual backend, so that the first request does not wait for them."""
        try:
            self._vocabulary.set_result(load())
            self._backend(_PREPARED_BACKEND)
        except Exception as error:
            expected = isinstance(error, QuireError | StartupError)
            logger.info("structured output will be refused: %s", error, exc_info=None if expected else error)
            if not self._vocabulary.done():
                self._vocabulary.set_exception(
                    error if isinstance(error, QuireError) else unknown_vocabulary(str(error))
                )

    def _prepare(self, key: int, wanted: Wanted) -> None:
        try:
            if key not in self._waiting:
                return
            prepared = Prepared(key, _followers(self._grammar(wanted.constraint), wanted))
        except QuireError as error:
            prepared = Prepared(key, {}, error)
        except Exception as error:
            logger.exception("a grammar cannot be read")
            prepared = Prepared(key, {}, Internal(f"The constraint cannot be read ({type(error).__name__})."))
        self._prepared.append(prepared)
        self._wake()

    def _grammar(self, constraint: Constraint) -> Grammar:
        with self._lock:
            known = self._kept.get(constraint.key)
        grammar = known[0] if known else self._backend(constraint.backend).read(constraint.grammar)
        self._keep(constraint, grammar)
        return grammar

    def _backend(self, name: str) -> Backend:
        vocabulary = self._vocabulary.result(_MOST_SECONDS)
        with self._making:
            if name not in self._backends:
                self._backends[name] = make_backend(name, vocabulary)
            return self._backends[name]

    def _keep(self, constraint: Constraint, grammar: Grammar) -> None:
        """Caches a grammar as the most recently used; evicts the least recently used ones if there are too many."""
        size = len(constraint.grammar)
        with self._lock:
            if constraint.key not in self._kept:
                self._kept[constraint.key] = grammar, size
                self._kept_bytes += size
            self._kept.move_to_end(constraint.key)
            while len(self._kept) > _MOST_KEPT or self._kept_bytes > max(size, _MOST_KEPT_BYTES):
                _, (_, gone) = self._kept.popitem(last=False)
                self._kept_bytes -= gone


def unknown_vocabulary(why: str) -> FailedPrecondition:
    """The error for a request with a constraint if there is no vocabulary."""
    return FailedPrecondition(
        "This engine cannot follow constraints, because it does not know the texts of the model's tokens: set "
        f"--tokenizer to the tokenizer's folder ({why}).",
        parameter="constraint",
    )


def _followers(grammar: Grammar, wanted: Wanted) -> dict[int, Follower]:
    """Creates a follower for each sequence, advanced to the end of its output.

    Raises:
        InvalidRequest: an output does not fit the grammar.
    """
    found = {}
    for choice, output in wanted.outputs.items():
        follower = Follower(grammar, wanted.endings, wanted.marks)
        follower.append(output)
        if follower.error:
            raise InvalidRequest(
                f"progress contains output that the constraint does not allow ({follower.error}).", parameter="progress"
            )
        found[choice] = follower
    return found
