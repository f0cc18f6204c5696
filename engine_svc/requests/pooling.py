"""Pooling requests, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine_svc.adapters.adapter import Adapter
from engine_svc.pooling_plan import PooledSequence
from engine_svc.requests.request import RequestLimits
from engine_svc.requests.validation import check_identity, check_model_name
from quire.bounds import check_count, check_token_ids
from quire.errors import ContextTooLong, InvalidRequest
from quire.images import Image, check_images

MAX_INPUTS = 2048
# Outputs of one request, which are sent in one message.
MAX_OUTPUT_BYTES = 12 * 2**20
# Memory of all waiting and running requests: their tokens and outputs.
MAX_LIVE_BYTES = 2**30
_TOKEN_BYTES = 8
_TOKEN_TASKS = ("token_embed", "token_classify")
_EMBED_TASKS = ("embed", "token_embed")


@dataclass(frozen=True)
class PoolingInput:
    """One sequence of tokens, with their types if they are not all 0, and the images among them."""

    token_ids: list[int]
    token_type_ids: list[int] = field(default_factory=list)
    images: tuple[Image, ...] = ()


@dataclass(frozen=True)
class PoolingRequest:
    """A pooling request. Only trustworthy once `validate_pooling` has accepted it."""

    request_id: str
    inputs: tuple[PoolingInput, ...]
    model: str = ""
    task: str = ""  # empty means the model's first task
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    priority: int = 0
    timeout_seconds: float | None = None
    adapter: Adapter | None = None  # resolved from `model` on arrival

    @property
    def content_bytes(self) -> int:
        """Bytes of all images."""
        return sum(image.num_bytes for each in self.inputs for image in each.images)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all inputs."""
        return sum(len(each.token_ids) for each in self.inputs)


@dataclass(frozen=True, kw_only=True)
class PoolingFacts:
    """Pooling properties of a model. The fields are documented in quire.v1.PoolingInfo."""

    tasks: tuple[str, ...]
    embedding_size: int = 0
    token_embedding_size: int = 0
    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    num_labels: int = 0
    label_names: tuple[str, ...] = ()
    is_cross_encoder: bool = False
    is_late_interaction: bool = False
    type_vocab_size: int = 0
    pooling_type: str = ""
    normalize: bool = True
    use_activation: bool = True
    max_inputs: int = MAX_INPUTS
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str = ""
    dimensions: int | None = None  # of embeddings, if the request does not set it
    added_token_ids: tuple[int, ...] = ()  # behind each sequence

    def sequence(self, request: PoolingRequest, index: int, adapter_slot: int = 0) -> PooledSequence:
        """One input of a request, with defaults for what the request does not set."""
        own = request.inputs[index]
        task = request.task or self.tasks[0]
        dimensions = (request.dimensions or self.dimensions or 0) if task in _EMBED_TASKS else 0
        return PooledSequence(
            [*own.token_ids, *self.added_token_ids], own.token_type_ids, task, dimensions,
            self.normalize if request.normalize is None else request.normalize,
            self.use_activation if request.use_activation is None else request.use_activation,
            list(own.images), adapter_slot,
        )  # fmt: skip

    def output_bytes(self, request: PoolingRequest) -> int:
        """Upper bound of the bytes of all outputs of a request."""
        task = request.task or self.tasks[0]
        size = {"embed": self.embedding_size, "token_embed": self.token_embedding_size}.get(task, self.num_labels)
        rows = request.num_tokens if task in _TOKEN_TASKS else len(request.inputs)
        return rows * size * 4

    def held_bytes(self, request: PoolingRequest) -> int:
        """Bytes of memory that a live request takes."""
        return request.num_tokens * _TOKEN_BYTES + self.output_bytes(request)


def validate_pooling(request: PoolingRequest, limits: RequestLimits, facts: PoolingFacts) -> None:
    """Checks every field.

    Raises:
        InvalidRequest: a field is out of bounds or not supported by the model; names it, its value and the bound.
        ContextTooLong: an input exceeds the model's length.
        NotFound: the model is not served here.
    """
    if request.adapter is None:
        check_model_name(request.model, limits)
    check_identity(request, limits)
    _check_parameters(request, facts)
    if not request.inputs:
        raise InvalidRequest("inputs is empty; give at least one sequence of tokens.", parameter="inputs")
    check_count("inputs", len(request.inputs), facts.max_inputs, "sequences")
    for index, each in enumerate(request.inputs):
        _check_input(index, each, limits, facts)
    if (size := facts.output_bytes(request)) > MAX_OUTPUT_BYTES:
        raise InvalidRequest(
            f"inputs: the results for {len(request.inputs)} sequences of {request.num_tokens} tokens take {size} "
            f"bytes; at most {MAX_OUTPUT_BYTES} are allowed: send fewer at a time.",
            parameter="inputs",
        )


def _check_parameters(request: PoolingRequest, facts: PoolingFacts) -> None:
    task = request.task or facts.tasks[0]
    if task not in facts.tasks:
        raise InvalidRequest(
            f"task is {task}, but this model is served for {', '.join(facts.tasks)}: ask for one of these, or start "
            "another model.",
            parameter="task",
        )
    embeds = task in _EMBED_TASKS
    if request.normalize is not None and not embeds:
        raise InvalidRequest(f"normalize is for embeddings, but task is {task}; leave it out.", parameter="normalize")
    if request.use_activation is not None and embeds:
        raise InvalidRequest(
            f"use_activation is for classes, but task is {task}; leave it out.", parameter="use_activation"
        )
    if request.dimensions is not None:
        _check_dimensions(request.dimensions, task, facts)


def _check_dimensions(dimensions: int, task: str, facts: PoolingFacts) -> None:
    size = facts.embedding_size if task == "embed" else facts.token_embedding_size
    chosen = facts.matryoshka_dimensions
    if task in _EMBED_TASKS and not facts.is_matryoshka and dimensions == size:
        return  # all values
    if task not in _EMBED_TASKS or not facts.is_matryoshka:
        what = (
            f"task is {task}"
            if task not in _EMBED_TASKS
            else "this model's embeddings cannot be truncated (Matryoshka)"
        )
        raise InvalidRequest(
            f"dimensions is {dimensions}, but {what}: leave it out. For a model that was trained for it, "
            "is_matryoshka or matryoshka_dimensions is set in its config.json, or with --hf-overrides.",
            parameter="dimensions",
        )
    if not 1 <= dimensions <= size or (chosen and dimensions not in chosen):
        allowed = f"one of {', '.join(map(str, chosen))}" if chosen else f"from 1 to {size}"
        raise InvalidRequest(f"dimensions is {dimensions}; it must be {allowed}.", parameter="dimensions")


def _check_input(index: int, each: PoolingInput, limits: RequestLimits, facts: PoolingFacts) -> None:
    name, count = f"inputs[{index}].token_ids", len(each.token_ids)
    if not count:
        raise InvalidRequest(f"{name} is empty; it needs at least one token.", parameter="inputs")
    if count > limits.max_model_len:
        raise ContextTooLong(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, {name} has {count}: "
            "shorten the text, or ask for truncation.",
            parameter="inputs",
        )
    check_token_ids("inputs", each.token_ids, limits.vocab_size)
    if each.token_type_ids:
        _check_types(index, each, facts)
    if each.images:
        if not limits.accepts_media:
            raise InvalidRequest(
                f"inputs[{index}] has images, but this worker's model reads text only; leave them out.",
                parameter="inputs",
            )
        check_images(each.images, count)


def _check_types(index: int, each: PoolingInput, facts: PoolingFacts) -> None:
    types, name = each.token_type_ids, f"inputs[{index}].token_type_ids"
    if len(types) != len(each.token_ids):
        raise InvalidRequest(
            f"{name} has {len(types)} entries for {len(each.token_ids)} tokens; give one for each, or none.",
            parameter="inputs",
        )
    if max(types) >= max(1, facts.type_vocab_size):
        known = f"token types from 0 to {facts.type_vocab_size - 1}" if facts.type_vocab_size else "no token types"
        raise InvalidRequest(f"{name} has {max(types)}, but the model has {known}.", parameter="inputs")
