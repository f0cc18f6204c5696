"""The contract of a structured-output backend: one half compiles what a request asks for, the other follows it.

    form ── Backend.compile ──▶ Constraint ── wire ──▶ Backend.read ──▶ Grammar ── matcher ──▶ Matcher
            tokenizer service                          engine, once for each key              one for each sequence

End-of-sequence tokens are outside of this contract: masks never have them, and `is_complete` says where one may follow.
"""

from __future__ import annotations

import enum
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.errors import InvalidRequest

if TYPE_CHECKING:  # processes that only compile may lack numpy
    import numpy as np
    import numpy.typing as npt

    from quire.structured.vocabulary import Vocabulary

MAX_GRAMMAR_BYTES = 4 * 2**20
# Stack size of threads that call `Backend.compile` or `Backend.read`: libraries walk grammars recursively, and a stack
# overflow ends the process. This is address space; memory is used only as needed.
STACK_BYTES = 512 * 2**20


class Form(enum.Enum):
    """The ways in which a request can describe its output; named as in quire.v1.CompileConstraintRequest."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    CHOICES = "choices"
    STRUCTURAL_TAG = "structural_tag"


@dataclass(frozen=True)
class ConstraintRequest:
    """What an output must look like."""

    form: Form
    text: str = ""  # the schema, regular expression, grammar or tag
    choices: tuple[str, ...] = ()
    disable_any_whitespace: bool = False  # JSON without whitespace between its parts
    disable_additional_properties: bool = False  # objects have only the properties that the schema names
    whitespace_pattern: str = ""  # pattern for whitespace between the parts of JSON; empty means the backend's own


class Inexpressible(InvalidRequest):
    """The request may be valid, but this backend cannot express it; another may."""


@dataclass(frozen=True)
class Constraint:
    """A compiled grammar as it is sent to an engine: see quire.v1.Constraint."""

    backend: str
    grammar: bytes  # in the backend's own format
    key: str

    @classmethod
    def of(cls, backend: str, grammar: bytes) -> Constraint:
        """Creates the constraint, with the key of its contents."""
        return cls(backend, grammar, constraint_key(backend, grammar))


def constraint_key(backend: str, grammar: bytes) -> str:
    """The only valid key of a constraint, so that a request cannot claim another one's grammar by its key."""
    return hashlib.sha256(backend.encode() + b"\0" + grammar).hexdigest()


class Matcher(ABC):
    """The state of one sequence in its grammar. Used from one thread at a time; no method raises.

    Failures are reported in `error`: from then on every token is refused and every mask empty.
    """

    @property
    @abstractmethod
    def error(self) -> str:
        """Why the matcher has failed, in words for the caller; empty while it has not."""

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Whether the output may end here."""

    @property
    @abstractmethod
    def is_stopped(self) -> bool:
        """Whether nothing can follow any more. A backend may notice this a step late, by an empty mask."""

    @abstractmethod
    def accept(self, token_ids: Sequence[int]) -> int:
        """Advances by these tokens, up to the first that does not fit; returns how many were accepted."""

    @abstractmethod
    def roll_back(self, num_tokens: int) -> None:
        """Undoes the last `num_tokens` accepted tokens."""

    @abstractmethod
    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """Writes the mask of the tokens that may come next.

        Args:
            row: int32 [ceil(vocabulary / 32)], contiguous: bit i % 32 of word i // 32 is token i. All of it is
                written; bits of special tokens, and those past the vocabulary, are 0, except for special tokens that
                the grammar itself names.
        """


class Grammar(ABC):
    """A grammar prepared for a vocabulary. Its methods may be called from any thread."""

    @abstractmethod
    def matcher(self) -> Matcher:
        """Creates a matcher at the grammar's beginning; takes well under a millisecond."""


class Backend(ABC):
    """A grammar library, bound to one vocabulary. Created once; its methods may be called from any thread.

    Attributes:
        name: as in `Constraint.backend`.
    """

    name: str

    @abstractmethod
    def __init__(self, vocabulary: Vocabulary) -> None:
        """Builds tables over the whole vocabulary, which may take seconds."""

    @abstractmethod
    def compile(self, request: ConstraintRequest) -> bytes:
        """Compiles the grammar to the backend's format. May take any amount of time and memory: call it in a process
        that can be killed.

        In the result, whitespace between the parts of JSON is bounded, unless the request has a pattern of its own.

        Raises:
            InvalidRequest: it is malformed, or no output can satisfy it.
            Inexpressible: this backend cannot express it.
        """

    @abstractmethod
    def read(self, grammar: bytes) -> Grammar:
        """Loads a grammar made by `compile`, in this or another process with the same vocabulary.

        Raises:
            InvalidRequest: it is not such a grammar. It comes from a network, so malformed data must do nothing worse
                than be refused.
        """


def mask_words(vocab_size: int) -> int:
    """Number of 32-bit words in a mask's row."""
    return (vocab_size + 31) // 32
