"""Options of pooling: embeddings, classes and scores instead of generated text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from quire.options.base import option

RUNNERS = ("auto", "generate", "pooling")
CONVERSIONS = ("auto", "none", "embed", "classify", "reward")
POOLING_TYPES = ("CLS", "LAST", "MEAN", "ALL", "STEP")

_TaskName = Literal["embed", "classify", "token_embed", "token_classify"]
_Count = Annotated[int, msgspec.Meta(ge=1)]
_TokenId = Annotated[int, msgspec.Meta(ge=0)]


class PoolerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of --pooler-config. Omitted ones are as in the model's own files."""

    pooling_type: str | None = None  # one of POOLING_TYPES, in any case
    seq_pooling_type: str | None = None  # the same, for pooling over whole sequences
    tok_pooling_type: str | None = None  # the same, for outputs of each token
    task: _TaskName | None = None  # the default task of requests
    normalize: bool | None = None  # whether embeddings are normalized
    use_activation: bool | None = None  # whether class logits are activated
    softmax: bool | None = None  # older names of use_activation
    activation: bool | None = None
    dimensions: _Count | None = None  # default dimensions of embeddings
    logit_bias: float | None = None  # subtracted from logits before activation
    logit_mean: float | None = None  # newer name of logit_bias
    logit_sigma: Annotated[float, msgspec.Meta(gt=0)] | None = None  # logits are then divided by this
    step_tag_id: _TokenId | None = None  # STEP: only tokens with this id are returned
    returned_token_ids: list[_TokenId] | None = None  # which of the tokens' classes are returned
    enable_chunked_processing: bool = False
    max_embed_len: _Count | None = None

    def __post_init__(self) -> None:
        """Validates the values.

        Raises:
            ValueError: a value does not exist, or asks for something that is not supported.
        """
        for name in ("pooling_type", "seq_pooling_type", "tok_pooling_type"):
            value = getattr(self, name)
            if value is not None and value.upper() not in POOLING_TYPES:
                raise ValueError(f"{name} {value!r} does not exist; it must be one of {', '.join(POOLING_TYPES)}.")
        if self.enable_chunked_processing or self.max_embed_len is not None:
            raise ValueError(
                "enable_chunked_processing and max_embed_len are not supported: they combine the embeddings of a long "
                "text's pieces, which is not the embedding of the text. Split texts beforehand, or let requests "
                "truncate them."
            )
        given = {each for each in (self.use_activation, self.softmax, self.activation) if each is not None}
        if len(given) > 1:
            raise ValueError(
                "use_activation, softmax and activation are names of the same setting, but their values "
                "differ. Set only one of them."
            )

    @property
    def sequence_pooling(self) -> str | None:
        """How a sequence becomes one vector: CLS, LAST or MEAN; None if not set."""
        return _among((self.seq_pooling_type, self.pooling_type), POOLING_TYPES[:3])

    @property
    def token_pooling(self) -> str | None:
        """Which tokens are returned: ALL or STEP; None if not set."""
        return _among((self.tok_pooling_type, self.pooling_type), POOLING_TYPES[3:])

    @property
    def activates(self) -> bool | None:
        """Whether classes are returned as probabilities; None if not set."""
        return next((each for each in (self.use_activation, self.softmax, self.activation) if each is not None), None)


def _among(values: tuple[str | None, ...], choices: tuple[str, ...]) -> str | None:
    return next((value.upper() for value in values if value and value.upper() in choices), None)


@dataclass(frozen=True)
class PoolingOptions:
    """Text generation or pooling."""

    group: ClassVar[str] = "ModelConfig"

    runner: str = option(
        "auto", "What the model is served for: generate (text) or pooling (embeddings, classes, scores, rewards). auto "
        "decides by its architecture, and by a sentence-transformers configuration. A worker does one of the two.",
        choices=RUNNERS, refused={"draft": "Set draft models with --speculative-config."},
    )  # fmt: skip
    convert: str = option(
        "auto", "What a model is converted to for pooling: embed, classify or reward; none leaves it as it is. auto "
        "decides by its architecture: generative models become embedding models.",
        choices=CONVERSIONS, refused={"embedding": "Use embed instead."}, affects_output=True,
    )  # fmt: skip
    pooler_config: dict[str, Any] = option(
        {}, "How hidden states become pooling results, as JSON; overrides the model's own files. Keys: pooling_type "
        "(CLS, LAST, MEAN; ALL, STEP), normalize, use_activation, dimensions, and others (docs/pooling.md).",
        schema=PoolerConfig, affects_output=True,
    )  # fmt: skip

    def pooler(self) -> PoolerConfig:
        """--pooler-config, parsed and validated."""
        return msgspec.convert(self.pooler_config, PoolerConfig)
