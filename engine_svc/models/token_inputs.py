"""What each layer adds for its tokens by their ids (per-layer embeddings, Gemma 3n and 4)."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.embedding import EmbeddedRows, VocabParallelEmbedding
from engine_svc.layers.linear import whole_linear
from engine_svc.layers.norm import RMSNorm
from engine_svc.models.config import ModelConfig
from engine_svc.models.gemma_config import TokenInputsConfig


class TokenInputs(torch.nn.Module):
    """For all layers at once: looked-up embeddings, plus a normed projection of the model's own embeddings."""

    def __init__(self, config: ModelConfig, form: TokenInputsConfig, context: LayerContext) -> None:
        super().__init__()
        self._ops, self._form = context.ops, form
        self._has_all_ids = form.vocab_size >= config.vocab_size
        size, half = form.size * config.num_layers, 2**-0.5  # the sum of both is scaled to one's variance
        self.embedding = VocabParallelEmbedding(
            form.vocab_size, size, context=context.at("embedding"), scale=form.size**0.5 * half
        )
        self.projection = whole_linear(config.hidden_size, size, bias=False, context=context.at("projection"))
        # The projection is divided by the root of hidden_size, which only changes what epsilon is compared with.
        self.norm = RMSNorm(form.size, config.norm_eps * config.hidden_size, context=context, factor=half)

    def forward(self, token_ids: torch.Tensor, hidden: torch.Tensor, embedded: EmbeddedRows | None) -> torch.Tensor:
        """int64 [tokens] and their embeddings [tokens, hidden_size] → [tokens, layers * size]."""
        if embedded is not None:
            token_ids = token_ids.index_fill(0, embedded.rows, self._form.given_id)
        if not self._has_all_ids:  # those without embeddings of their own, of images and audio, have the first one's
            token_ids = torch.where(token_ids < self._form.vocab_size, token_ids, 0)
        projected = self.projection(hidden)
        rows = projected.view(-1, self._form.size)
        self.norm(rows, output=rows)
        return self._ops.add(projected, self.embedding(token_ids))

    def of_layer(self, inputs: torch.Tensor, index: int) -> torch.Tensor:
        """What `forward` returned, for one layer: [tokens, size], with gaps between tokens."""
        return inputs[:, index * self._form.size : (index + 1) * self._form.size]
