"""How a request wants its tokens sampled: the authoritative list of parameters, with their neutral values and bounds.

The wire's `SamplingParams` and the gateway's request fields have the same names; conversions iterate over this list. A
new parameter is thus a field here, in the wire's message and among the gateway's fields, and a stage in
`engine_svc/sampling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, get_type_hints

import msgspec

from quire.bounds import MAX_CHOICES, MAX_REPETITION_PATTERN_SIZE, MAX_SPECULATIVE_TOKENS, Bound, is_greedy
from quire.reasoning import ReasoningMarks

_COUNT = Bound(0, 2**31 - 1)
# Marks fields whose default a model's generation config may override.
_MODEL_DEFAULT = "model default"


class RepetitionDetection(msgspec.Struct, frozen=True):
    """When a sequence counts as repeating itself; see the wire's message of that name. HTTP requests use the same
    fields."""

    max_pattern_size: int = 0  # in tokens; 0 detects nothing
    min_pattern_size: int = 0  # 0 means 1
    min_count: int = 0

    def check(self, parameter: str) -> None:
        """Checks the bounds of all fields.

        Raises:
            InvalidRequest: a number is out of bounds.
        """
        Bound(0, MAX_REPETITION_PATTERN_SIZE).check(f"{parameter}.max_pattern_size", self.max_pattern_size)
        Bound(0, self.max_pattern_size).check(f"{parameter}.min_pattern_size", self.min_pattern_size)
        if self.max_pattern_size:
            Bound(2, _COUNT.maximum).check(f"{parameter}.min_count", self.min_count)


Xargs = dict[str, str | int | float | list[str | int | float]]
"""Arguments that a request passes to the operator's logits processors."""


class LogitsProcessorCall(msgspec.Struct, frozen=True, array_like=True):
    """A logits processor that a request asks for."""

    qualname: str  # of its class
    args: bytes = b"[]"  # JSON
    kwargs: bytes = b"{}"  # JSON


class SamplingParameters(msgspec.Struct, frozen=True, array_like=True):
    """How to turn logits into tokens; protos/quire/v1/common.proto explains each field.

    Encoded as an array between the processes of a worker, which all run the same code.
    """

    n: Annotated[int, Bound(1, MAX_CHOICES)] = 1
    max_tokens: Annotated[int | None, _COUNT] = None  # None: as many as fit
    min_tokens: Annotated[int, _COUNT] = 0
    temperature: Annotated[float, Bound(0, 2), _MODEL_DEFAULT] = 1.0
    top_p: Annotated[float, Bound(0, 1, minimum_excluded=True), _MODEL_DEFAULT] = 1.0
    top_k: Annotated[int, _COUNT, _MODEL_DEFAULT] = 0  # 0 keeps all
    min_p: Annotated[float, Bound(0, 1), _MODEL_DEFAULT] = 0.0
    repetition_penalty: Annotated[float, Bound(0, minimum_excluded=True), _MODEL_DEFAULT] = 1.0
    presence_penalty: Annotated[float, Bound(-2, 2), _MODEL_DEFAULT] = 0.0
    frequency_penalty: Annotated[float, Bound(-2, 2), _MODEL_DEFAULT] = 0.0
    seed: Annotated[int | None, Bound(-(2**63), 2**63 - 1)] = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None  # None: none wanted; 0: the sampled token's only
    prompt_logprobs: int | None = None
    routed_experts_prompt_start: Annotated[int, _COUNT] = 0  # the first prompt token whose experts are returned
    processed_logprobs: bool = False  # of the distribution sampled from, whatever the server's --logprobs-mode
    logprob_token_ids: tuple[int, ...] = ()  # in place of the most likely ones
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    repetition_detection: RepetitionDetection | None = None
    thinking_token_budget: Annotated[int | None, _COUNT] = None  # None: no bound
    vllm_xargs: bytes = b""  # JSON, for the operator's logits processors
    logits_processors: tuple[LogitsProcessorCall, ...] = ()
    # Whether tokens are marked: None if the server marks any; True to be refused if it does not.
    watermarking: bool | None = None
    # Maximum number of draft tokens at a time, 0 for none; None means as many as the server would use. The output is
    # the same.
    num_speculative_tokens: Annotated[int | None, Bound(0, MAX_SPECULATIVE_TOKENS)] = None
    reasoning: ReasoningMarks | None = None  # None if nothing depends on it

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always picked."""
        return is_greedy(self.temperature)

    def given(self) -> dict[str, Any]:
        """The fields that differ from their neutral values."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in fields.items() if value != getattr(NEUTRAL, name)}


NEUTRAL = SamplingParameters()


def _notes() -> dict[str, tuple[object, ...]]:
    """The annotations of each field's type."""
    hints = get_type_hints(SamplingParameters, include_extras=True)
    return {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}


SAMPLING_BOUNDS: Mapping[str, Bound] = MappingProxyType(
    {name: note for name, notes in _notes().items() for note in notes if isinstance(note, Bound)}
)
MODEL_DEFAULTS = tuple(name for name, notes in _notes().items() if _MODEL_DEFAULT in notes)
