"""Draft heads: draft models of about one layer that read the hidden states of the model that verifies, the target.

A row combines the target's features at a position with the token after it, and predicts the token after that one. For
further tokens, a head reads its own output as features. Embedding and output layer are the target's, unless the head's
checkpoint has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from engine_svc.attention.base import AttentionBackend, CacheScales
from engine_svc.layers.context import LayerContext
from engine_svc.layers.embedding import VocabParallelEmbedding
from engine_svc.layers.linear import ColumnParallelLinear, ReplicatedLinear, qkv_parts
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.layers.rotary import rotary_table
from engine_svc.models.attention import AnyLayerCache, Attention, StepInputs
from engine_svc.models.config import ModelConfig
from engine_svc.models.decoder import Decoder
from engine_svc.models.decoder_layer import DecoderLayer, LayerOutput, hidden_norm
from engine_svc.ops.base import Ops


@dataclass(frozen=True)
class HeadForm:
    """The form of a head, in addition to the shape of its layers."""

    config: ModelConfig
    own_embedding: bool = False
    own_output: bool = False
    draft_vocab_size: int | None = None  # number of tokens it chooses from, if these are not the target's first ones
    fc_bias: bool = False
    norm_before_residual: bool = False  # EAGLE-3: the residual starts with normalized features
    # The head's modules → what the checkpoint calls them, for heads that are a part of the target's own checkpoint.
    names: Mapping[str, str] = field(default_factory=dict)
    features_first: bool = False  # multi-token prediction: features are before embeddings where both are joined
    passes_normalized: bool = False  # the same: the features of the following row are normalized


class FeatureHead(torch.nn.Module):
    """Base class of heads: see DraftModel. Loaded like a Decoder."""

    is_tied = False

    def __init__(
        self, form: HeadForm, context: LayerContext, attention: AttentionBackend, target: Decoder, longest: int
    ) -> None:
        """
        Args:
            longest: number of positions that are used.
        """
        super().__init__()
        self.config, self.quantization = form.config, context.quantization
        self.feature_size = form.config.hidden_size
        self._ops, self._attention = context.ops, attention
        config = form.config
        rotary = rotary_table(
            config.rope_parameters, config.rotary_dim, config.max_position_embeddings, longest, context.dtype
        )
        self._rotary = rotary.to(context.device)
        # The target's modules are kept as bound methods: as attributes they would become submodules, to be loaded.
        self._embed: Callable[[torch.Tensor], torch.Tensor] = target.embed_tokens.forward
        self._logits: Callable[[torch.Tensor], torch.Tensor] = target.logits
        self._vocab_size = target.config.vocab_size
        if form.own_embedding:
            size = config.vocab_size, config.hidden_size
            self.embed_tokens = VocabParallelEmbedding(*size, context=context.at("embed_tokens"))
            self._embed = self.embed_tokens.forward
        self.d2t: LoadedParameter | None = None
        if form.own_output:
            rows = form.draft_vocab_size or config.vocab_size
            self.lm_head = VocabParallelEmbedding(
                rows, config.hidden_size, context=context.at("lm_head"), is_input=False, is_output=True
            )
            self._logits = self.lm_head.logits
        if form.draft_vocab_size is not None:
            self.d2t = LoadedParameter((form.draft_vocab_size,), torch.int64, context.device)
            self.d2t.default, self.d2t.loader = 0, self._load_d2t
            self._places = torch.arange(form.draft_vocab_size, device=context.device)

    def is_elsewhere(self, parameter: str) -> bool:
        """See Decoder.is_elsewhere: a head is whole on every rank that has it."""
        return False

    def _load_d2t(self, source: TensorSlice, part: str) -> None:
        """Loads the offset from each of the head's tokens to the target's token."""
        assert self.d2t is not None
        self.d2t.write(part, self.d2t, source, (slice(None),))
        targets = self.d2t + self._places
        if int(targets.min()) < 0 or int(targets.max()) >= self._vocab_size:
            raise ValueError(f"names a token that is not among the model's {self._vocab_size}")

    def use_cache_scales(self, scales: Mapping[int, CacheScales]) -> None:
        """Does nothing: heads have no scales of cached keys and values."""

    def _step(self, positions: torch.Tensor) -> StepInputs:
        rotary = self._ops.take_rows(self._rotary, positions)
        return StepInputs(rotary, rotary, self._attention)

    def features_of(self, target: torch.Tensor) -> torch.Tensor:
        """See DraftModel.features_of."""
        return target

    def _normalised(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states as the output layer reads them."""
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See DraftModel.logits; minus infinity for tokens that the head does not have."""
        logits = self._logits(self._normalised(hidden))
        if self.d2t is None:
            return logits[:, : self._vocab_size]
        spread = logits.new_full((len(logits), self._vocab_size), -torch.inf)
        spread[:, self._places + self.d2t] = logits
        return spread


def beside(ops: Ops, *parts: torch.Tensor) -> torch.Tensor:
    """Joins parts [tokens, size] to [tokens, all sizes]."""
    return ops.join([part[:, None] for part in parts])


class EagleHead(FeatureHead):
    """EAGLE (Li et al. 2024): ordinary layers whose input is projected from embedding and feature.

    The first layer has no norm before attention. The output is a feature, which the target's output layer reads
    directly.
    """

    def __init__(
        self, form: HeadForm, context: LayerContext, attention: AttentionBackend, target: Decoder, longest: int
    ) -> None:
        super().__init__(form, context, attention, target, longest)
        size, config = form.config.hidden_size, form.config
        self.fc = ReplicatedLinear(2 * size, size, bias=form.fc_bias, wide=False, context=context.at("fc"))
        self.layers = torch.nn.ModuleList(
            [
                (DecoderLayer if index else _FirstLayer)(config, context.at(f"layers.{index}"), index)
                for index in range(config.num_layers)
            ]
        )

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, caches: Sequence[AnyLayerCache],
        features: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """See DraftModel.forward."""
        assert features is not None
        step, hidden = self._step(positions), self.fc(beside(self._ops, self._embed(token_ids), features))
        residual = self._ops.zeros_like(hidden)
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden, residual = layer(hidden, residual, cache, step)
        return self._ops.add(residual, hidden)


class _FirstLayer(DecoderLayer):
    norms = ("post_attention_layernorm",)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """See DecoderLayer.forward."""
        self._ops.add(residual, hidden)
        hidden = self.mlp(self.post_attention_layernorm(self._mix(hidden, cache, step), residual))
        return LayerOutput(hidden, residual)


class Eagle3Head(FeatureHead):
    """EAGLE-3 (Li et al. 2025): a layer whose attention reads embedding and feature side by side.

    The target's features are the residual sums before three of its layers, combined by `fc`; the head's own features
    are the sums after its layer.
    """

    def __init__(
        self, form: HeadForm, context: LayerContext, attention: AttentionBackend, target: Decoder, longest: int
    ) -> None:
        super().__init__(form, context, attention, target, longest)
        size = form.config.hidden_size
        self.fc = ReplicatedLinear(3 * size, size, bias=form.fc_bias, wide=False, context=context.at("fc"))
        self.layers = torch.nn.ModuleList([_PairLayer(form, context.at("layers.0"))])
        self.norm = hidden_norm(form.config, context)

    def features_of(self, target: torch.Tensor) -> torch.Tensor:
        """See DraftModel.features_of."""
        features: torch.Tensor = self.fc(target)
        return features

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, caches: Sequence[AnyLayerCache],
        features: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """See DraftModel.forward."""
        assert features is not None
        (cache,) = caches
        return self.layers[0].forward_pair(self._embed(token_ids), features, cache, self._step(positions))

    def _normalised(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.norm(hidden)


class _PairAttention(Attention):
    """Attention with an input of twice the hidden size: embedding and feature."""

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        parts = qkv_parts(context.groups.tensor, config.num_heads, config.num_kv_heads, config.head_dim)
        self.qkv_proj = ColumnParallelLinear(
            2 * config.hidden_size, parts, bias=config.qkv_bias, context=context.at("qkv_proj")
        )


class _PairLayer(DecoderLayer):
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")

    def __init__(self, form: HeadForm, context: LayerContext) -> None:
        super().__init__(form.config, context, 0)
        self.self_attn = _PairAttention(form.config, context.at("self_attn"), 0)
        self._norm_before_residual = form.norm_before_residual

    def forward_pair(
        self, embedded: torch.Tensor, features: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> torch.Tensor:
        """Runs the layer; embeddings and features are [tokens, hidden_size]. Returns the residual sum after it."""
        normed = self.hidden_norm(features)
        residual = self._ops.add(self._ops.zeros_like(normed), normed if self._norm_before_residual else features)
        hidden = self._mix(beside(self._ops, self.input_layernorm(embedded), normed), cache, step)
        hidden = self.mlp(self.post_attention_layernorm(hidden, residual))
        return self._ops.add(residual, hidden)
