"""Compiles output constraints, each distinct one once, in child processes that can be killed."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Iterator

from quire.errors import InvalidRequest, QuireError, StartupError
from quire.options.structured_outputs import StructuredOutputsOptions
from quire.structured.asked import AskedConstraint
from quire.structured.base import Constraint, ConstraintRequest, Form, Inexpressible
from quire.structured.fallback import may_express
from quire.structured.registry import BACKENDS, check_installed, is_installed
from quire.tokenizer.modes import TokenizerPlace
from tokenizer_svc.byte_cache import ByteCache
from tokenizer_svc.child import Message
from tokenizer_svc.child_pool import ChildEnded, ChildPool, ChildTooSlow

MAX_TEXT_BYTES = 2**20  # of a schema, regular expression, grammar or structural tag
MAX_CHOICES = 10_000
MAX_PATTERN_LENGTH = 256  # of a whitespace pattern, in characters

_MAX_WAITING = 64
_ENTRY_BYTES = 1024  # approximate memory of a cache entry, apart from its texts


class ConstraintCompiler:
    """Compiles constraints, with a pool of processes for each backend. Used from one event loop."""

    def __init__(
        self, tokenizer: TokenizerPlace, options: StructuredOutputsOptions, refusal: QuireError | None = None
    ) -> None:
        """
        Args:
            tokenizer: the tokenizer whose tokens the outputs consist of.
            refusal: the error for all constraints, if this tokenizer allows none, as with most models that do not
                generate.

        Raises:
            StartupError: the options are inconsistent, or their backend is not installed.
        """
        self._tokenizer = tokenizer
        self._refusal = refusal
        self._defaults = options.chosen()
        self._timeout_seconds = options.constraint_timeout_seconds
        self._pools: dict[str, ChildPool] = {}
        self._known: ByteCache[AskedConstraint, Constraint | InvalidRequest] = ByteCache(options.constraint_cache_bytes)
        self._under_way: dict[AskedConstraint, asyncio.Task[Constraint]] = {}
        self._default_backend = self._defaults.backend if self._defaults.backend != "auto" else next(iter(BACKENDS))
        try:
            check_installed(self._default_backend)
        except QuireError as error:
            raise StartupError(error.message) from error

    async def prepare(self) -> None:
        """Starts a process of the default backend, unless it would be useless or a constraint came first."""
        if self._refusal is None and self._default_backend not in self._pools:
            await self._pool(self._default_backend).prepare()

    async def close(self) -> None:
        """Ends the processes."""
        for task in tuple(self._under_way.values()):
            task.cancel()
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))

    async def compile(self, asked: AskedConstraint) -> Constraint:
        """Returns the compiled constraint as engines apply it, from the cache if the same one was asked for before.

        Raises:
            InvalidRequest: it is malformed or too large, no backend can express it, or it takes too much time or
                memory.
            FailedPrecondition: its backend is not installed, or the tokenizer allows none.
            Overloaded: too many constraints wait already, or the machine is too busy.
        """
        if self._refusal is not None:
            raise self._refusal
        asked = self._with_defaults(asked)
        if (known := self._known.get(asked)) is None:
            _check_size(asked.request)
            task = self._under_way.get(asked)
            if task is None:
                task = self._under_way[asked] = asyncio.create_task(self._compile(asked))
                task.add_done_callback(functools.partial(self._ended, asked))
            return await asyncio.shield(task)  # continues for other callers and for the cache
        if isinstance(known, InvalidRequest):
            raise known
        return known

    def _with_defaults(self, asked: AskedConstraint) -> AskedConstraint:
        defaults, request = self._defaults, asked.request
        return AskedConstraint(
            dataclasses.replace(
                request,
                disable_any_whitespace=request.disable_any_whitespace or defaults.disable_any_whitespace,
                disable_additional_properties=(
                    request.disable_additional_properties or defaults.disable_additional_properties
                ),
            ),
            asked.backend if asked.backend not in ("", "auto") else self._default_backend,
            asked.disable_fallback or defaults.disable_fallback,
        )

    def _ended(self, asked: AskedConstraint, task: asyncio.Task[Constraint]) -> None:
        self._under_way.pop(asked, None)
        if not task.cancelled():
            task.exception()  # retrieves it: all who asked may be gone

    async def _compile(self, asked: AskedConstraint) -> Constraint:
        try:
            constraint = await self._compile_by_any(asked)
        except InvalidRequest as refusal:
            if not isinstance(refusal, _Costly):
                self._known.put(asked, refusal, _num_bytes(asked) + len(refusal.message))
            raise
        self._known.put(asked, constraint, _num_bytes(asked) + len(constraint.grammar))
        return constraint

    async def _compile_by_any(self, asked: AskedConstraint) -> Constraint:
        check_installed(asked.backend)
        try:
            return await self._compile_by(asked.backend, asked.request)
        except Inexpressible as refusal:
            for backend in _others(asked) if not asked.disable_fallback else ():
                try:
                    return await self._compile_by(backend, asked.request)
                except InvalidRequest:
                    continue
            raise refusal

    async def _compile_by(self, backend: str, request: ConstraintRequest) -> Constraint:
        fields = {**dataclasses.asdict(request), "form": request.form.value}
        text = fields.pop("text").encode()
        try:
            answer = await self._pool(backend).ask(Message(fields, text))
        except ChildTooSlow:
            raise _Costly(
                f"The constraint takes longer than {self._timeout_seconds:g} s to compile; make it simpler."
            ) from None
        except ChildEnded:
            raise _Costly(
                "The constraint takes too much memory to compile, or nests too deeply; make it simpler."
            ) from None
        if "error" in answer.fields:
            raise (Inexpressible if answer.fields["inexpressible"] else InvalidRequest)(answer.fields["error"])
        return Constraint.of(backend, answer.payload)

    def _pool(self, backend: str) -> ChildPool:
        if backend not in self._pools:
            self._pools[backend] = ChildPool(
                "tokenizer_svc.compile_process",
                Message({"tokenizer": dataclasses.asdict(self._tokenizer), "backend": backend}),
                _PROBE,
                work="constraints to compile",
                timeout_seconds=self._timeout_seconds,
                max_waiting=_MAX_WAITING,
            )
        return self._pools[backend]


def _others(asked: AskedConstraint) -> Iterator[str]:
    """Yields the backends that may express what the chosen one cannot."""
    for name in BACKENDS:
        if name != asked.backend and is_installed(name) and may_express(name, asked.request):
            yield name


class _Costly(InvalidRequest):
    """The constraint takes too much time or memory, at least at the moment; not cached."""


def _num_bytes(asked: AskedConstraint) -> int:
    """Approximate memory of the cache key."""
    return _ENTRY_BYTES + len(asked.request.text) + sum(map(len, asked.request.choices))


def _check_size(request: ConstraintRequest) -> None:
    """Checks the constraint's size.

    Raises:
        InvalidRequest: it is larger than any realistic one.
    """
    size = len(request.text.encode()) + sum(map(len, request.choices))
    if size > MAX_TEXT_BYTES:
        raise InvalidRequest(f"It has {size} bytes; a constraint may have at most {MAX_TEXT_BYTES}.")
    if request.form is Form.CHOICES and not 1 <= len(request.choices) <= MAX_CHOICES:
        raise InvalidRequest(f"There are {len(request.choices)} choices; 1 to {MAX_CHOICES} are allowed.")
    if len(request.whitespace_pattern) > MAX_PATTERN_LENGTH:
        raise InvalidRequest(
            f"whitespace_pattern has {len(request.whitespace_pattern)} characters; at most {MAX_PATTERN_LENGTH} are "
            "allowed.",
            parameter="whitespace_pattern",
        )


_PROBE = Message({"form": "choices", "choices": ["a"]})
