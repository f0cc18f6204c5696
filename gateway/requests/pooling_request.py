"""A request to a pooling model, independent of HTTP and OpenAI: token sequences in, rows of values out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.requests.named_key import Admission
from gateway.requests.served_model import ServedModel
from quire.images import Image


@dataclass(frozen=True, slots=True)
class TokenizedInput:
    """One input sequence."""

    token_ids: tuple[int, ...]
    type_ids: tuple[int, ...] = ()  # token types of a pair, if the model has them
    images: tuple[Image, ...] = ()

    @property
    def content_bytes(self) -> int:
        """Bytes of its images."""
        return sum(image.num_bytes for image in self.images)


@dataclass(frozen=True, slots=True)
class Truncation:
    """How many tokens of a long text are kept, and whether from its end; None means as the tokenizer is configured."""

    num_tokens: int
    keeps_end: bool | None = None


@dataclass(frozen=True)
class PoolingRequest:
    """Inputs that are processed with the same parameters. Everything is validated already."""

    request_id: str
    model: ServedModel
    requested_model: str  # the name that the request used, which may be an alias of several models
    inputs: Sequence[TokenizedInput]
    task: str
    timeout_seconds: float
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    priority: int = 0
    tenant: str = ""
    admission: Admission | None = None  # of a named key, whose tokens it uses

    @property
    def weight(self) -> float:
        """The tenant's share in the routers' queues, relative to those of others."""
        return self.admission.key.entry.weight if self.admission else 1.0

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all inputs."""
        return sum(len(each.token_ids) for each in self.inputs)

    def answer_bytes(self, given: TokenizedInput) -> int:
        """Returns the size of one input's output in bytes, at most."""
        info = self.model.pooling
        assert info is not None
        by_token = self.task.startswith("token_")
        size = info.num_labels if self.task.endswith("classify") else info.embedding_size
        if self.task == "token_embed":
            size = info.token_embedding_size
        return 4 * max(1, size) * (len(given.token_ids) if by_token else 1)
