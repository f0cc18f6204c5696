"""Models whose layers choose the positions they attend to."""

from __future__ import annotations

from dataclasses import replace

from engine_svc.attention.base import AttentionBackend
from engine_svc.attention.chosen import SparseAttention
from engine_svc.attention.chosen_blocks import ChosenBlocks
from engine_svc.attention.registry import create_backend, create_chosen
from engine_svc.models.config import ModelConfig
from engine_svc.models.latent_config import BlockIndexerConfig, IndexerConfig
from engine_svc.native.library import Kernels
from engine_svc.parallel.group import ParallelGroups
from engine_svc.parallel.stages import Stage
from quire.errors import StartupError


def chosen_attention(
    indexer: IndexerConfig | BlockIndexerConfig, attention: AttentionBackend, kernels: Kernels | None,
    groups: ParallelGroups,
) -> SparseAttention:  # fmt: skip
    """Creates the choice of positions for layers that have this attention backend.

    Raises:
        StartupError: contexts are divided among ranks, which would choose different positions.
    """
    if groups.decode_context.world_size > 1:
        raise StartupError(
            "--decode-context-parallel-size is not supported for models that choose the tokens they attend to. Leave "
            f"it out, or lower --max-model-len to {indexer.most}, up to which they attend to all tokens."
        )
    shape = replace(
        attention.shape, num_heads=indexer.heads, num_kv_heads=1, head_dim=indexer.head_dim, keys_are_values=True,
        expanded_dim=0,
    )  # fmt: skip
    keys = create_backend(attention.name, shape, kernels)
    if isinstance(indexer, BlockIndexerConfig):
        return ChosenBlocks(attention, keys, indexer.whole_layers, indexer.block_size, indexer.local_blocks)
    return create_chosen(attention, keys, indexer.shared_layers)


def check_stage(config: ModelConfig, stage: Stage) -> None:
    """Checks that a pipeline stage has all that its layers need of each other.

    Raises:
        StartupError: the stage's first layer needs what a layer of another stage chooses, or has put out.
    """
    if config.indexer and stage.layers[0] in config.indexer.shared_layers:
        raise StartupError(
            f"--pipeline-parallel-size: layer {stage.layers[0]} of {config.architecture}, the first of a stage, "
            "attends to tokens that an earlier layer chooses. Use --tensor-parallel-size instead, divide the layers "
            f"otherwise with VLLM_PP_LAYER_PARTITION, or lower --max-model-len to {config.indexer.most}."
        )
    if config.norm_placement == "pairs" and stage.layers[0] % 2:
        raise StartupError(
            f"--pipeline-parallel-size: layer {stage.layers[0]} of {config.architecture}, the first of a stage, is the "
            "second one of a pair. Divide the layers otherwise with VLLM_PP_LAYER_PARTITION."
        )
