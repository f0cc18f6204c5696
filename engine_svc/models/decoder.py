"""The decoder shared by all families; the differences between them are in ModelConfig."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from engine_svc.attention.base import AttentionBackend, CacheScales
from engine_svc.layers.context import LayerContext
from engine_svc.layers.embedding import EmbeddedRows, ImageExtras, VocabParallelEmbedding
from engine_svc.layers.host_weights import HostWeights
from engine_svc.layers.linear import ColumnParallelLinear, whole_linear
from engine_svc.layers.norm import NoNorm
from engine_svc.layers.rotary import POSITIONS_PER_TOKEN, rotary_components, rotary_table
from engine_svc.models.altup import AltUpInputs, AltUpNorm
from engine_svc.models.attention import AnyLayerCache, Attention, StepInputs
from engine_svc.models.config import Blending, ModelConfig, Temperature, windowed_rotation
from engine_svc.models.decoder_layer import DecoderLayer, hidden_norm
from engine_svc.models.growing_sums import growth, norm_of_sums
from engine_svc.models.latent_attention import LatentAttention
from engine_svc.models.layer_kinds import create_layer
from engine_svc.models.positions import position_table
from engine_svc.models.streams import CollapsedNorm, as_streams
from engine_svc.models.token_inputs import TokenInputs
from engine_svc.parallel.stages import Stage
from engine_svc.parallel.vocabulary import VocabularyPart
from engine_svc.recurrence.base import StateShape

logger = logging.getLogger(__name__)

# Modules that only the first or the last stage has.
_OF_A_STAGE = (
    "embed_tokens", "project_in", "positions", "embedding_norm", "token_inputs", "stream_inputs", "norm", "project_out",
    "lm_head",
)  # fmt: skip


class Decoder(torch.nn.Module):
    """Turns token ids into hidden states, and hidden states into logits: a whole model, or one stage of it."""

    def __init__(
        self, config: ModelConfig, context: LayerContext, attention: AttentionBackend, max_model_len: int,
        stage: Stage | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            stage: the pipeline stage to build; modules of other stages do not exist. None means the whole model.
        """
        super().__init__()
        self.stage = stage = stage or Stage(range(config.num_layers))
        self.config = config
        self.quantization = context.quantization
        self.host_weights: HostWeights | None = None  # weights that are copied to the device in each pass
        self._attention = attention
        self._ops = context.ops
        self._grows = config.norm_placement == "around, growing"
        hidden_size, embedding_size = config.hidden_size, config.embedding_size or config.hidden_size
        size, tied = (config.vocab_size, embedding_size), config.tie_word_embeddings and config.has_head
        scale = float(torch.tensor(config.embedding_scale, dtype=context.dtype)) * config.embedding_multiplier
        if stage.looks_up or (tied and stage.is_last):
            self.embed_tokens = VocabParallelEmbedding(
                *size, context=context.at("embed_tokens"), is_input=stage.looks_up, is_output=tied and stage.is_last,
                scale=scale,
            )  # fmt: skip
        if stage.looks_up:
            self.project_in = _projection(embedding_size, hidden_size, context.at("project_in"))
            self.positions = position_table(config, context)
            self.embedding_norm = hidden_norm(config, context) if config.embedding_norm else None
            form = config.token_inputs
            self.token_inputs = TokenInputs(config, form, context.at("token_inputs")) if form else None
            self.stream_inputs = (
                AltUpInputs(config, config.altup, context.at("stream_inputs")) if config.altup else None
            )
        self.layers = torch.nn.ModuleDict(  # by their numbers in the whole model
            {str(index): create_layer(config, context.at(f"layers.{index}"), index) for index in stage.layers}
        )
        if stage.is_last:
            self.norm = self._last_norm(context)
            # Without adapters: it computes only the rows that have logits, which do not match the batch's row mapping.
            plain = replace(context, adapters=None)
            self.project_out = _projection(hidden_size, embedding_size, plain.at("project_out"))
            self.lm_head: VocabParallelEmbedding | None = self.embed_tokens if tied else None
            if config.has_head and not tied:
                self.lm_head = VocabParallelEmbedding(
                    *size, context=context.at("lm_head"), is_input=False, is_output=True, bias=config.head_bias
                )

        self._borrow_options()

        def table(parameters: Mapping[str, Any], dim: int) -> torch.Tensor:
            length = max_model_len * (POSITIONS_PER_TOKEN if "mrope_section" in parameters else 1)
            found = rotary_table(parameters, dim, config.max_position_embeddings, length, context.dtype)
            return found.to(context.device)

        self._taps: frozenset[int] = frozenset()
        self._first_borrowing = min(config.borrowed, default=None)
        self._rotary = table(config.rope_parameters, config.rotary_dim)
        components = rotary_components(config.rope_parameters, config.rotary_dim)
        self._rotary_components = None if components is None else components.to(context.device)
        self._local_rotary = table(*windowed_rotation(config)) if config.local_rope_parameters else None
        self._query_scales = (
            None if config.temperature is None
            else _query_scales(config.temperature, len(self._rotary)).to(context.device)
        )  # fmt: skip

    @property
    def is_tied(self) -> bool:
        """Whether the embedding is also the output layer, or there is no output layer."""
        return self.config.tie_word_embeddings or not self.config.has_head

    def is_elsewhere(self, parameter: str) -> bool:
        """Whether a parameter of the model belongs to another stage."""
        module, _, rest = parameter.partition(".")
        if module == "layers":
            return rest.partition(".")[0] not in self.layers
        return module in _OF_A_STAGE and not hasattr(self, module)

    def tap(self, layers: Collection[int]) -> None:
        """From now on, `forward` appends each token's residual sums before these layers to its hidden state.

        Args:
            layers: the number of layers stands for what the norm after the last one reads.
        """
        self._taps = frozenset(layers)

    def state_shapes(self) -> dict[int, StateShape]:
        """State shapes of the recurrent layers, by layer index."""
        shapes = {index: layer.state_shape for index, layer in self._numbered_layers()}
        return {index: shape for index, shape in shapes.items() if isinstance(shape, StateShape)}

    def _numbered_layers(self) -> Iterator[tuple[int, DecoderLayer]]:
        for name, layer in self.layers.items():
            assert isinstance(layer, DecoderLayer)
            yield int(name), layer

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: Sequence[AnyLayerCache],
        embedded: EmbeddedRows | None = None,
        received: torch.Tensor | None = None,
        output_rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One forward pass over a flat batch.

        Args:
            token_ids, positions: int64 [tokens]
            caches: one for each layer of the stage.
            embedded: rows whose embeddings are given; already scaled, if the model scales its embeddings.
            received: what the previous stage returned.
            output_rows: int64 [outputs], the rows that are needed of the last stage; then nothing may be tapped. The
                last layer's cache must be prepared with these rows as its queries (OutputRows.as_queries). None means
                that all rows are needed.

        Returns:
            Hidden states [tokens or outputs, hidden_size]. The last stage's are normalized, with tapped values appended
            to each row; those of other stages are the residual sums so far.
        """
        rotary = self._ops.take_rows(self._rotary, positions)
        images = None if embedded is None else embedded.images
        if images is not None:
            rotary = self._turned(rotary, images)
        local = rotary if self._local_rotary is None else self._ops.take_rows(self._local_rotary, positions)
        scales = None if self._query_scales is None else self._ops.take_rows(self._query_scales, positions)
        step = StepInputs(rotary, local, self._attention, scales)
        if self.config.streams is not None:
            step = replace(step, token_ids=token_ids, rotary_table=self._rotary)
        hidden = self._embed(token_ids, positions, embedded) if received is None else received
        if self.stage.looks_up and self.token_inputs is not None:
            inputs = self.token_inputs(token_ids, hidden, embedded)
            step = replace(step, token_inputs=functools.partial(self.token_inputs.of_layer, inputs))
        if self.stage.looks_up and self.stream_inputs is not None:
            hidden = self.stream_inputs(hidden)
        text = None if embedded is None else embedded.text
        if embedded is not None and text is not None:
            hidden, step = self._ops.take_rows(hidden, text), replace(step, encoded=embedded.values)
        residual = self._ops.zeros_like(hidden)
        tapped: list[torch.Tensor] = []
        kept: dict[int, torch.Tensor] = {}
        for (index, layer), cache in zip(self._numbered_layers(), caches, strict=True):
            if images is not None and images.deep is not None:
                hidden = self._with_features(hidden, index, images.deep_rows, images.deep)
            if self.config.blending is not None:
                hidden, residual = self._blended(hidden, residual, index, self.config.blending, kept)
            if index in self._taps:
                tapped.append(self._tapped(hidden, residual, index))
            if index == self._first_borrowing and output_rows is not None:
                hidden, residual, step = self._outputs_of(hidden, residual, step, output_rows)
            elif index == self.config.num_layers - 1 and self._first_borrowing is None:
                step = replace(step, output_rows=output_rows)
            hidden, residual = layer(hidden, residual, cache, step)
        if self.stage.is_last and self.config.num_layers in self._taps:
            tapped.append(self._tapped(hidden, residual, self.config.num_layers))
        hidden = self.norm(hidden, residual) if self.stage.is_last else self._ops.add(residual, hidden)
        if text is not None:
            hidden = hidden.new_zeros(len(token_ids), hidden.shape[1]).index_copy_(0, text, hidden)
        if not (tapped and self.stage.is_last):
            return hidden
        return self._ops.join([each[:, None] for each in (hidden, *tapped)])

    def _sum(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._ops.add(self._ops.add(self._ops.zeros_like(hidden), residual), hidden)

    def _tapped(self, hidden: torch.Tensor, residual: torch.Tensor, layers: int) -> torch.Tensor:
        """The residual sums after this many layers."""
        found = self._sum(hidden, residual)
        return self._ops.scale(found, growth(layers) ** -0.5) if self._grows else found

    def _blended(
        self, hidden: torch.Tensor, residual: torch.Tensor, index: int, blending: Blending,
        kept: dict[int, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """The input of a layer, with earlier residual sums mixed in; see Blending.

        Args:
            kept: the weighted sums by layer, to which this one's are added if a later layer needs them.
        """
        if index in blending.sources.values():
            kept[index] = self._ops.scale(self._sum(hidden, residual), blending.weight)
        if index not in blending.sources:
            return hidden, residual
        mixed = self._ops.scale(self._sum(hidden, residual), 1 - blending.weight)
        return self._ops.zeros_like(hidden), self._ops.add(mixed, kept[blending.sources[index]])

    def _with_features(
        self, hidden: torch.Tensor, index: int, rows: torch.Tensor, features: torch.Tensor
    ) -> torch.Tensor:
        """Adds those features of images [kinds, rows, hidden_size], if any, that are for the input of a layer."""
        layers = self.config.feature_layers or range(1, 1 + len(features))
        for layer, added in zip(layers, features, strict=True):
            if layer == index:
                hidden = hidden.index_add(0, rows, added, alpha=self.config.feature_scale)
        return hidden

    def _outputs_of(
        self, hidden: torch.Tensor, residual: torch.Tensor, step: StepInputs, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, StepInputs]:
        """Takes the rows that are needed before layers that borrow keys and values: they need no others."""
        take, inputs = self._ops.take_rows, step.token_inputs
        rotary = take(step.rotary, rows)
        local = rotary if step.local_rotary is step.rotary else take(step.local_rotary, rows)
        of_rows = None if inputs is None else lambda index: take(inputs(index), rows)
        step = replace(step, rotary=rotary, local_rotary=local, token_inputs=of_rows)
        return take(hidden, rows), take(residual, rows), step

    def _borrow_options(self) -> None:
        """Layers that borrow keys and values need the same scales for these as the layers that cached them."""
        layers = dict(self._numbered_layers())
        for index, source in self.config.borrowed.items():
            if index in layers:
                layers[index].self_attn.options = layers[source].self_attn.options

    def _turned(self, rotary: torch.Tensor, images: ImageExtras) -> torch.Tensor:
        """The rotary rows [tokens, 2, rotary_dim / 2] with those of images, whose tokens have three positions."""
        if images.positions is None or self._rotary_components is None:
            return rotary
        rows = self._rotary[images.positions]
        chosen = rows.gather(0, self._rotary_components.expand(1, *rows.shape[1:]))
        return rotary.index_copy(0, images.rows, chosen[0])

    def _embed(self, token_ids: torch.Tensor, positions: torch.Tensor, embedded: EmbeddedRows | None) -> torch.Tensor:
        hidden: torch.Tensor = self.embed_tokens(token_ids)
        if embedded is not None:
            adds, factor = self.config.frames_per_token > 0, self.config.embedding_multiplier
            hidden = embedded.add(hidden) if adds else embedded.put(hidden, factor)
        if self.project_in is not None:
            hidden = self.project_in(hidden)
        if self.positions is not None:
            hidden = self._ops.add(hidden, self.positions(positions))
        hidden = hidden if self.embedding_norm is None else self.embedding_norm(hidden)
        return hidden if self.config.streams is None else as_streams(hidden, self.config.streams.count)

    def _last_norm(self, context: LayerContext) -> torch.nn.Module:
        config = self.config
        if config.altup is not None:
            return AltUpNorm(config, config.altup, context.at("norm"))
        if config.streams is not None:
            return CollapsedNorm(config.hidden_size, config.streams, config.norm_eps, context=context)
        if self._grows:
            return norm_of_sums(config, context, growth(config.num_layers))
        if config.last_norm_eps is not None:
            config = replace(config, norm_eps=config.last_norm_eps)
        return hidden_norm(config, context) if config.has_norm else NoNorm(context.ops)

    def use_cache_scales(self, scales: Mapping[int, CacheScales]) -> None:
        """Makes layers use a checkpoint's KV cache scales, if the cache has 8 bits."""
        if not scales:
            return
        if self._attention.shape.cache_dtype is None:
            logger.info("the checkpoint's scales for an 8-bit KV cache are not used without --kv-cache-dtype fp8")
            return
        for index, layer in self._numbered_layers():
            found = scales.get(index, CacheScales())
            for module in layer.modules():
                if isinstance(module, Attention):
                    self._attention.use_scales(module.options, found)
                elif isinstance(module, LatentAttention):  # the cached vector is both key and value
                    self._attention.use_scales(module.options, CacheScales(found.key, found.key))

    def logits(self, hidden: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """[tokens, hidden_size] → float32 [rows, vocab_size].

        Args:
            rows: int64 [rows], the tokens whose logits are computed; None means all.
        """
        assert self.lm_head is not None
        return self._scaled(self.lm_head.logits(self._taken(hidden, rows)))

    @property
    def vocabulary(self) -> VocabularyPart | None:
        """The tokens whose logits `own_logits` returns; None if `logits` need not gather anything."""
        return self.lm_head.part if self.lm_head is not None else None

    def own_logits(self, hidden: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Like `logits`, but only for this rank's part of the vocabulary."""
        assert self.lm_head is not None
        return self._scaled(self.lm_head.own_logits(self._taken(hidden, rows)))

    def _taken(self, hidden: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        taken = hidden if rows is None else self._ops.take_rows(hidden, rows)
        return taken if self.project_out is None else self.project_out(taken)

    def _scaled(self, logits: torch.Tensor) -> torch.Tensor:
        if self.config.logits_scale != 1.0:
            logits = self._ops.scale(logits, self.config.logits_scale)
        cap = self.config.logits_softcap
        return logits if cap is None else self._ops.softcap(logits, cap)


def _projection(inputs: int, outputs: int, context: LayerContext) -> ColumnParallelLinear | None:
    """A projection between embeddings and hidden states; None if they have the same size."""
    return None if inputs == outputs else whole_linear(inputs, outputs, bias=False, context=context)


def _query_scales(temperature: Temperature, count: int) -> torch.Tensor:
    """The factors of the first positions: float32 [count, 1]."""
    positions = torch.arange(count, dtype=torch.float32)[:, None]
    counts = (positions + (not temperature.rotating)) / temperature.floor
    if temperature.is_power:
        return (1 + counts) ** temperature.growth
    steps = torch.floor(counts)
    return torch.log1p(steps) * temperature.growth + 1
