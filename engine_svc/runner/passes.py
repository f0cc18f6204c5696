"""Forward passes of a model over its layers' caches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine_svc.attention.base import AttentionBackend
from engine_svc.layer_groups import LayerGroup
from engine_svc.layers.context import PresentRows
from engine_svc.layers.embedding import EmbeddedRows
from engine_svc.loader.model import Model
from engine_svc.models.attention import AnyLayerCache, LayerCache, layer_cache
from engine_svc.models.decoder import Decoder
from engine_svc.runner.batch import Inputs
from engine_svc.runner.recorded import Forward
from engine_svc.runner.states import StateCache


class ForwardPasses:
    """Prepares forward passes, one for each batch.

    Attributes:
        caches: KV caches, one for each layer of a group; the blocks of all groups share them.
        states: states of recurrent layers; None until they are allocated.
    """

    def __init__(
        self, model: Model, attention: AttentionBackend, groups: Sequence[LayerGroup], present: PresentRows
    ) -> None:
        """
        Args:
            present: read by the model's layers; set for each pass.
        """
        self._model, self._attention, self._groups, self._present = model, attention, groups, present
        self.caches: list[torch.Tensor] = []
        self.states: StateCache | None = None

    def prepare(self, inputs: Inputs, embedded: EmbeddedRows | None = None) -> Forward:
        """Prepares a pass over these inputs, which returns the hidden states of their output rows.

        Only a Decoder's inputs may have fewer output rows than rows.
        """
        caches, model, outputs = self._layer_caches(inputs), self._model, inputs.outputs

        def forward() -> torch.Tensor:
            self._present.count = inputs.present
            arguments = inputs.token_ids, inputs.positions, caches, embedded, inputs.received
            if outputs is None:
                return model.forward(*arguments)
            assert isinstance(model, Decoder)
            return model.forward(*arguments, outputs.rows)

        return forward

    def _layer_caches(self, inputs: Inputs) -> list[AnyLayerCache]:
        """The cache of each layer of the stage."""
        layers, prepare = self._model.stage.layers, self._attention.prepare
        attended = {
            layer: LayerCache(cache, ready)
            for group, ready in zip(self._groups, map(prepare, inputs.metadata), strict=True)
            for layer, cache in zip(group.layers, self.caches, strict=False)
        }
        if inputs.outputs is not None and layers[-1] in attended:
            cache, ready = attended[layers[-1]]
            attended[layers[-1]] = LayerCache(cache, prepare(inputs.outputs.as_queries(ready.metadata)))
        kept = {} if self.states is None else self.states.layers(inputs.states)
        return [layer_cache(attended.get(layer), kept.get(layer)) for layer in layers]
