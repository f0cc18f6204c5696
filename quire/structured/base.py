"""The contract of a backend for structured output: one half compiles what a request asks for, the other follows it.

    form ── Backend.compile ──▶ Constraint ── wire ──▶ Backend.read ──▶ Grammar ── matcher ──▶ Matcher
            tokenizer service                          engine, once for each key              one for each sequence

Nothing in here knows of end-of-sequence tokens: a mask never has them, and `is_complete` says where one may stand.
"""

from __future__ import annotations

import enum
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.errors import InvalidRequest

if TYPE_CHECKING:  # whoever only compiles may lack it
    import numpy as np
    import numpy.typing as npt

    from quire.structured.vocabulary import Vocabulary

MAX_GRAMMAR_BYTES = 4 * 2**20
# Stack of a thread that calls `Backend.compile` or `Backend.read`: libraries walk grammars recursively, and what
# overflows a stack ends its process. It takes address space, and memory only as far as it is used.
STACK_BYTES = 512 * 2**20


class Form(enum.Enum):
    """In which words a request says what its output has to be; named as in quire.v1.CompileConstraintRequest."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    CHOICES = "choices"
    STRUCTURAL_TAG = "structural_tag"


@dataclass(frozen=True)
class ConstraintRequest:
    """What an output has to be."""

    form: Form
    text: str = ""  # the schema, expression, grammar or tag
    choices: tuple[str, ...] = ()
    disable_any_whitespace: bool = False  # JSON without spaces and line breaks between its parts
    disable_additional_properties: bool = False  # objects have the properties alone that the schema names
    whitespace_pattern: str = ""  # of what may stand between the parts of JSON; empty for the backend's own


class Inexpressible(InvalidRequest):
    """The request may be right, but this backend has no way to follow it; another may."""


@dataclass(frozen=True)
class Constraint:
    """A compiled grammar, as it travels to an engine: see quire.v1.Constraint."""

    backend: str
    grammar: bytes  # in the backend's own form
    key: str

    @classmethod
    def of(cls, backend: str, grammar: bytes) -> Constraint:
        """The constraint, named by what is in it."""
        return cls(backend, grammar, constraint_key(backend, grammar))


def constraint_key(backend: str, grammar: bytes) -> str:
    """The only key that a constraint may have: whose grammar a request follows must not depend on what it says."""
    return hashlib.sha256(backend.encode() + b"\0" + grammar).hexdigest()


class Matcher(ABC):
    """How far one sequence has come in its grammar. Used from one thread at a time; no method raises.

    What goes wrong is a value, `error`: from then on every token is refused and every mask empty.
    """

    @property
    @abstractmethod
    def error(self) -> str:
        """Why it follows no more, in words for the caller; empty while it does."""

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether the output may end here."""

    @property
    @abstractmethod
    def is_stopped(self) -> bool:
        """Whether nothing can follow any more. A backend may find this out a step late, by an empty mask."""

    @abstractmethod
    def accept(self, token_ids: Sequence[int]) -> int:
        """Goes on with these tokens; how many of them fit. At the first that does not it stops where it is."""

    @abstractmethod
    def roll_back(self, num_tokens: int) -> None:
        """Forgets the last tokens, of those that were accepted."""

    @abstractmethod
    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """Writes which tokens may come next.

        Args:
            row: int32 [ceil(vocabulary / 32)], contiguous: bit i % 32 of word i // 32 is token i. All of it is
                written; the bits of special tokens, and those past the vocabulary, are 0, but for special tokens that
                the grammar itself names.
        """


class Grammar(ABC):
    """A grammar made ready for a vocabulary. Its methods may be called from any thread."""

    @abstractmethod
    def matcher(self) -> Matcher:
        """One at the grammar's beginning; takes well under a millisecond."""


class Backend(ABC):
    """One way to follow grammars, over one vocabulary. Made once; its methods may be called from any thread.

    Attributes:
        name: as in `Constraint.backend`.
    """

    name: str

    @abstractmethod
    def __init__(self, vocabulary: Vocabulary) -> None:
        """May take seconds: tables over the whole vocabulary are made here."""

    @abstractmethod
    def compile(self, request: ConstraintRequest) -> bytes:
        """The grammar in the backend's form. May take any time and memory: it is to be called where it can be killed.

        Whitespace between the parts of JSON is bounded in what it returns, unless the request has a pattern of its own.

        Raises:
            InvalidRequest: it is malformed, or no output can satisfy it.
            Inexpressible: this backend has no way to say it.
        """

    @abstractmethod
    def read(self, grammar: bytes) -> Grammar:
        """The grammar that `compile` made, here or in another process over the same vocabulary.

        Raises:
            InvalidRequest: it is none. Nothing in it may do more than be refused: it comes from a network.
        """


def mask_words(vocab_size: int) -> int:
    """Words of a mask's row."""
    return (vocab_size + 31) // 32
