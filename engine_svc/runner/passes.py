"""Forward passes of a model over its layers' caches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch

from engine_svc.attention.base import AttentionMetadata, Prepared
from engine_svc.block_stores.movable import Items, Movable
from engine_svc.layer_groups import LayerGroup
from engine_svc.layers.embedding import EmbeddedRows
from engine_svc.loader.model import LoadedModel
from engine_svc.models.attention import AnyLayerCache, CrossCache, EntriesCache, LayerCache, layer_cache
from engine_svc.models.decoder import Decoder
from engine_svc.plan import RoutedExpertsForm, StepPlan
from engine_svc.runner.batch import FlatBatch, Inputs, SlotBuffers
from engine_svc.runner.encoder_rows import EncoderRows
from engine_svc.runner.image_parts import ImageParts
from engine_svc.runner.recorded import Forward
from engine_svc.runner.routed_experts import RoutedExperts, RoutedRows
from engine_svc.runner.states import SlotsOfSequences, StateCache


class ForwardPasses:
    """Prepares forward passes, one for each batch.

    Attributes:
        caches: KV caches, one for each layer of a group; the blocks of all groups share them.
        index_caches: caches of the layers' indexers, by layer.
        states: states of recurrent layers; None until they are allocated.
        routed: records which experts tokens are routed to; None if nobody wants to know.
    """

    def __init__(
        self, loaded: LoadedModel, groups: Sequence[LayerGroup], max_num_seqs: int, routed: RoutedExperts | None = None
    ) -> None:
        self._model, self._attention, self._groups = loaded.model, loaded.attention, groups
        self._present, self._borrowed = loaded.present, loaded.facts.borrowed
        self._entries = {layer: loaded.facts.entries_of(layer) for layer in loaded.facts.compressed_layers}
        self._windows_on_images = loaded.facts.windows_on_whole_images
        self._encoder_rows = EncoderRows.of(loaded.facts, max_num_seqs, self._attention.shape)
        self._chosen = loaded.chosen
        without = loaded.chosen.shared_layers | loaded.chosen.whole_layers if loaded.chosen else frozenset()
        self._indexed = [layer for layer in self._model.stage.layers if loaded.chosen and layer not in without]
        self._num_blocks = 0
        self.caches: list[torch.Tensor] = []
        self.index_caches: dict[int, torch.Tensor] = {}
        self.states: StateCache | None = None
        self.routed = routed

    def allocate(self, num_blocks: int, num_caches: int) -> None:
        """Allocates all KV caches."""
        self._num_blocks = num_blocks
        self.caches = self._attention.allocate(num_blocks, num_caches)
        if self._chosen:
            found = self._chosen.keys.allocate(num_blocks, len(self._indexed))
            self.index_caches = dict(zip(self._indexed, found, strict=True))
        if self.routed is not None:
            self.routed.allocate(num_blocks)

    @property
    def all_caches(self) -> list[torch.Tensor]:
        """All KV caches, those of indexers and of routed experts included."""
        routed = () if self.routed is None or self.routed.cache is None else (self.routed.cache,)
        return [*self.caches, *self.index_caches.values(), *routed]

    def movable(self, caches: Sequence[torch.Tensor]) -> Movable:
        """What block stores can move: blocks of the KV caches, which are all of the rank's, and saved states."""
        states, device = self.states.saved if self.states else (), self._attention.shape.device
        return Movable(Items(caches, self._attention.block_dimension), Items(states, 0), self._num_blocks, device)

    @property
    def routed_form(self) -> RoutedExpertsForm | None:
        """The form of what is recorded of routed experts; None if nothing is."""
        return None if self.routed is None else self.routed.form

    def release(self) -> None:
        """Frees KV caches and states."""
        self.caches, self.index_caches, self.states = [], {}, None
        if self.routed is not None:
            self.routed.cache = None

    def keep_routed(self, batch: FlatBatch) -> None:
        """After a pass, keeps which experts its tokens were routed to, if that is recorded."""
        if self.routed is not None:
            self.routed.keep(batch)

    def read_routed(self, plan: StepPlan, batch: FlatBatch, buffers: SlotBuffers) -> RoutedRows | None:
        """See RoutedExperts.read; None if they are not recorded."""
        return None if self.routed is None else self.routed.read(plan, batch, buffers)

    def restore_states(self, plan: StepPlan) -> None:
        """Before a step, gives new sequences the saved states that they begin with."""
        for sequence in plan.new_sequences:
            if sequence.snapshot >= 0 and self.states is not None:
                self.states.restore(sequence.snapshot, sequence.slot)

    def save_states(self, plan: StepPlan, slots: SlotsOfSequences) -> None:
        """After a step, saves the states that the plan asks for."""
        if plan.snapshots and self.states is not None:
            self.states.save({slots.known(slot): place for slot, place in plan.snapshots.items()})

    def bytes_per_block(self, num_caches: int) -> int:
        """Bytes of one block over all KV caches; see `allocate`."""
        keys = self._chosen.keys.bytes_per_block(len(self._indexed)) if self._chosen else 0
        routed = 0 if self.routed is None else self.routed.bytes_per_block
        return self._attention.bytes_per_block(num_caches) + keys + routed

    def prepare(self, inputs: Inputs, embedded: EmbeddedRows | None = None) -> Forward:
        """Prepares a pass over these inputs, which returns the hidden states of their output rows.

        Only a Decoder's inputs may have fewer output rows than rows.
        """
        model, outputs = self._model, inputs.outputs
        if self._encoder_rows is not None:
            caches, embedded = self._crossing_caches(self._encoder_rows, inputs, embedded)
        else:
            caches = self._layer_caches(inputs, embedded)

        def forward() -> torch.Tensor:
            self._present.count = inputs.present
            arguments = inputs.token_ids, inputs.positions, caches, embedded, inputs.received
            if outputs is None:
                return model.forward(*arguments)
            assert isinstance(model, Decoder)
            return model.forward(*arguments, outputs.rows)

        return forward

    def _layer_caches(self, inputs: Inputs, embedded: EmbeddedRows | None) -> list[AnyLayerCache]:
        """The cache of each layer of the stage."""
        layers, both_ways = self._model.stage.layers, None if embedded is None else embedded.both_ways
        attended: dict[int, LayerCache] = {}
        for group, metadata in zip(self._groups, inputs.metadata, strict=True):
            if not group.layers:  # another stage has them
                continue
            prepare = functools.partial(self._attention.prepare_for, group.layers)
            images = None
            if both_ways is not None and (group.window is not None or not self._windows_on_images):
                images = ImageParts(prepare, both_ways)
            caches = dict(zip(group.layers, self._attention.caches_of(self.caches, group.layers), strict=True))
            sources = self._borrowed or {layers[-1]: layers[-1]}
            lasts = {layer: caches[source] for layer, source in sources.items() if source in caches}
            attended |= self._ready(caches | lasts, metadata, images.prepare if images else prepare)
            if lasts and (outputs := inputs.outputs) is not None:
                if images is None:
                    attended |= self._ready(lasts, outputs.as_queries(metadata), prepare)
                else:
                    ready = images.prepare_outputs(metadata, outputs)
                    attended |= {layer: LayerCache(cache, ready) for layer, cache in lasts.items()}
        for layer in self._entries.keys() & attended.keys():
            of_entries = attended[self._entries[layer]]
            attended[layer] = attended[layer]._replace(entries=EntriesCache(of_entries.cache, of_entries.prepared))
        kept = {} if self.states is None else self.states.layers(inputs.states)
        return [layer_cache(attended.get(layer), kept.get(layer)) for layer in layers]

    def _ready(
        self, caches: Mapping[int, torch.Tensor], metadata: AttentionMetadata,
        prepare: Callable[[AttentionMetadata], Prepared],
    ) -> dict[int, LayerCache]:  # fmt: skip
        choosing = self._chosen.prepare(metadata, prepare) if self._chosen else None
        whole = self._chosen.whole_layers & caches.keys() if self._chosen else caches.keys()
        ready = prepare(metadata) if choosing is None or whole else Prepared(metadata)
        return {
            layer: LayerCache(cache, ready, None if layer in whole else choosing, self.index_caches.get(layer))
            for layer, cache in caches.items()
        }

    def _crossing_caches(
        self, rows: EncoderRows, inputs: Inputs, embedded: EmbeddedRows | None
    ) -> tuple[list[AnyLayerCache], EmbeddedRows | None]:
        """The cache of each layer of an encoder-decoder model, all of which are in one group."""
        (metadata,) = inputs.metadata
        (text, encoded), embedded = rows.divide(metadata, embedded)
        prepare = self._attention.prepare
        ready, ready_encoded = prepare(text), prepare(encoded)
        return [CrossCache(LayerCache(cache, ready), ready_encoded) for cache in self.caches], embedded
