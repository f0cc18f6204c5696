"""Bounds on the contents of requests. The gateway checks them first; tokenizer service and engine check them again."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.errors import ContextTooLong, InvalidRequest

MAX_CHOICES = 128
MAX_STOP_TOKEN_IDS = 128
MAX_STOP_STRINGS = 64
MAX_STOP_STRING_LENGTH = 256  # in characters
MAX_BAD_WORDS = 128
MAX_BAD_WORD_LENGTH = 256  # in characters
MAX_BAD_WORD_TOKENS = 256
MAX_BAD_WORD_RUNS = 2 * MAX_BAD_WORDS  # of tokens: each word alone, and after a space
MAX_LOGPROB_TOKEN_IDS = 1024
MAX_LOGITS_PROCESSORS = 16  # per request
MAX_QUALNAME_LENGTH = 256
MAX_XARGS_BYTES = 16 * 1024  # as JSON
MAX_REPETITION_PATTERN_SIZE = 1024  # in tokens
MAX_SPECULATIVE_TOKENS = 64  # drafted for a sequence at a time
MAX_ROUTED_EXPERTS_BYTES = 48 * 2**20  # of a prompt: they come in one message
MAX_MESSAGES = 4096  # per conversation
RESERVED_TEMPLATE_VARIABLES = ("messages", "tools", "add_generation_prompt")  # of chat templates: requests have fields
MAX_TOOLS = 1024
TOOL_NAME_PATTERN = "[a-zA-Z0-9_-]{1,128}"
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_CACHE_SALT_LENGTH = 128
CACHE_SALT_PATTERN = rf"[^@/\\\x00]{{1,{MAX_CACHE_SALT_LENGTH}}}"  # for requests; the gateway makes a tenant's
MAX_CALLER_NAME_LENGTH = 512  # for a tenant, and for a session: Claude Code names its with 160 characters
MAX_TIMEOUT_MS = 7 * 24 * 3600 * 1000
# Maximum entries (prompt tokens times alternatives) of log-probabilities in one message: at most 17 bytes each.
MAX_PROMPT_LOGPROB_ENTRIES = 500_000
# With more alternatives than this, log-probabilities dominate an answer's size: it is sent whole, with at most this
# many entries in total.
MANY_LOGPROBS = 1024
MAX_MANY_LOGPROB_ENTRIES = 2**22
MAX_STEP_LOGPROB_ENTRIES = 2**21  # limit for all these requests together in an engine step: some 150 MB
REQUEST_ID_PATTERN = r"[A-Za-z0-9._-]{1,128}"
MAX_ADAPTERS = 1024  # per worker
MAX_REVISION_LENGTH = 64  # for an adapter: SHA-256 in hexadecimal digits
ADAPTER_NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,255}"

_SHOWN_IDS = 100


@dataclass(frozen=True)
class Bound:
    """An interval of numbers. NaN and the infinities lie outside of every bound."""

    minimum: float
    maximum: float = math.inf
    minimum_excluded: bool = False

    def check(self, parameter: str, value: float) -> None:
        """Checks that `value` lies within the bound.

        Raises:
            InvalidRequest: `value` lies outside; the message names parameter, value and bound.
        """
        above = value > self.minimum if self.minimum_excluded else value >= self.minimum
        if not (above and value <= self.maximum and math.isfinite(value)):
            raise InvalidRequest(f"{parameter} is {_shown(value)}; it must be {self.describe()}.", parameter=parameter)

    def describe(self) -> str:
        """The bound in words, such as `above 0 and at most 1`."""
        low = f"{'above' if self.minimum_excluded else 'at least'} {_shown(self.minimum)}"
        return f"{low} and at most {_shown(self.maximum)}" if math.isfinite(self.maximum) else f"{low} and finite"


def _shown(value: float) -> str:
    """Formats a number; integers with all digits, because a rounded one just out of bounds would look like the
    bound."""
    return str(value) if isinstance(value, int) else f"{value:g}"


_LEAST_TEMPERATURE = 9.9999e-6  # 1e-5, or its float32 value on the wire
LOGIT_BIAS_BOUND = Bound(-100, 100)
BLOCK_SIZE_BOUND = Bound(1, 1024)
PRIORITY_BOUND = Bound(-(2**31), 2**31 - 1)
TENANT_WEIGHT_BOUND = Bound(0.001, 1000)


def tenant_weight(given: float) -> float:
    """Returns the weight of a tenant in a message, where 0 stands for 1.

    Raises:
        InvalidRequest: it is out of bounds.
    """
    weight = given or 1.0
    TENANT_WEIGHT_BOUND.check("tenant_weight", weight)
    return weight


def check_context_length(
    prompt: int, wanted: int | None, max_model_len: int, *, prompt_name: str = "prompt", wanted_name: str = "max_tokens"
) -> None:
    """Checks that a prompt and its output together fit the model.

    Args:
        prompt: number of prompt tokens.
        wanted: number of output tokens that must fit after it; None means at least one.

    Raises:
        ContextTooLong: they do not fit. The message starts with OpenAI's words, by which clients recognize this error.
    """
    room = max_model_len - prompt
    if room >= (1 if wanted is None else wanted):
        return
    opening = f"This model's maximum context length is {max_model_len} tokens. However, the prompt has {prompt}"
    if room < 1 or wanted is None:
        raise ContextTooLong(f"{opening}, and the output must fit as well: shorten the prompt.", parameter=prompt_name)
    raise ContextTooLong(
        f"{opening} and {wanted_name} is {wanted}, together {prompt + wanted}: shorten the prompt or ask for at most "
        f"{room}.",
        parameter=wanted_name,
    )


def check_token_ids(parameter: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Checks that all token ids are in the vocabulary.

    Raises:
        InvalidRequest: some ids are not; the message lists them, or the first of many.
    """
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return
    wrong = itertools.islice((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), _SHOWN_IDS)
    raise InvalidRequest(
        f"{parameter} has token ids that are out of vocabulary: {', '.join(map(str, dict.fromkeys(wrong)))}. The "
        f"model's vocabulary size is {vocab_size}: ids go from 0 to {vocab_size - 1}.",
        parameter=parameter,
    )


def check_count(parameter: str, count: int, most: int, unit: str) -> None:
    """Checks that there are at most `most` items.

    Raises:
        InvalidRequest: there are more.
    """
    if count > most:
        raise InvalidRequest(f"{parameter} has {count} {unit}; at most {most} are allowed.", parameter=parameter)


def check_adapter_name(parameter: str, name: str) -> None:
    """Checks that an adapter can have this name.

    Raises:
        InvalidRequest: no adapter can.
    """
    if not re.fullmatch(ADAPTER_NAME_PATTERN, name):
        raise InvalidRequest(
            f"{parameter} is {name[:100]!r}; an adapter's name must be 1 to 256 of the characters A-Z a-z 0-9 . _ : "
            "/ @ + - and begin with a letter or digit.",
            parameter=parameter,
        )


def check_json(parameter: str, text: bytes, kind: Any) -> None:
    """Checks that the text is JSON of the given type.

    Raises:
        InvalidRequest: it is not JSON, or not of that type.
    """
    try:
        msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{parameter} cannot be read: {error}.", parameter=parameter) from error


def is_greedy(temperature: float) -> bool:
    """Whether this temperature always picks the most likely token: below 1e-5 it does, as in vLLM."""
    return temperature < _LEAST_TEMPERATURE
