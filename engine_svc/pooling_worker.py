"""Builds a worker's engine for a model that is served for pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine_svc.core.pooling_engine import OneShotSteps, PoolingEngine
from engine_svc.executor.pooled import PooledRanks
from engine_svc.kv_cache.sizing import KvCacheSize
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.memory_ahead import memory_ahead
from engine_svc.model_info import ModelInfo, make_model_info
from engine_svc.one_shot import check_one_shot
from engine_svc.parallel.layout import layout_of
from engine_svc.plan import KvCacheSpec, PoolingSpec
from engine_svc.pooling_form.form import PoolingForm, pooling_form
from engine_svc.pooling_plan import PooledOutput, PooledSequence
from engine_svc.requests.generation_config import GenerationDefaults
from engine_svc.requests.pooling import PoolingFacts, PoolingRequest
from quire.collection import without_collection
from quire.errors import StartupError
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from quire.runners import POOLING
from quire.tokenizer.modes import find_tokenizer


def build_pooling(
    folder: Path, config: Mapping[str, Any], model: ModelOptions, options: EngineOptions
) -> tuple[PoolingEngine[PoolingRequest, PooledSequence, PooledOutput], ModelInfo, KvCacheSpec]:
    """Loads the model, in the thread that will run its steps.

    Args:
        folder: folder of the model.
        config: content of its config.json.

    Raises:
        StartupError: the model cannot be served; says why and what to do.
    """
    layout, executor = layout_of(options.parallel), options.parallel.executor
    others = {
        "--pipeline-parallel-size": layout.pipeline > 1,
        "--decode-context-parallel-size": layout.decode_context > 1,
        "--enable-expert-parallel": layout.expert > 1,
        "--nnodes": options.parallel.nodes.nnodes > 1,
        "--distributed-executor-backend uni with --tensor-parallel-size": options.parallel.distributed_executor_backend
        == "uni"
        and layout.num_ranks > 1,
        "--max-parallel-loading-workers": executor.max_parallel_loading_workers is not None,
        "--default-mm-loras": bool(options.lora.default_mm_loras),
        "--model-impl transformers": options.form.model_impl == "transformers",
        "--ec-transfer-config": options.images.encoding().ec_role is not None,
    }
    check_one_shot(options, "--runner pooling", others)
    form = pooling_form(config, folder, options.pooling)
    tokens = _token_ids(form, model)
    # Imported late, because torch takes a second or two and the worker answers requests by then.
    source = create_format(folder, options.load)
    steps: OneShotSteps[PooledSequence, PooledOutput]
    if layout_of(options.parallel).num_ranks > 1:
        steps = PooledRanks(tokens)
        spec = steps.load(model, options)
    else:
        with without_collection(), memory_ahead(source, options.kernels.device):
            from engine_svc.executor.device import choose_device
            from engine_svc.parallel.group import ParallelGroups
            from engine_svc.pooling.rank import PoolingRank, PoolingSource

        device = choose_device(options.kernels.device, 0)
        rank = steps = PoolingRank(PoolingSource(model, options, tokens, ParallelGroups(), device))
        rank.runner.allocate()
        spec = rank.runner.spec()
    assert spec.pooling is not None
    facts = _facts(form, spec.pooling)
    size = KvCacheSize(0, spec.max_model_len - len(form.added_token_ids))
    info = make_model_info(folder, model, options, spec, size, GenerationDefaults({}, frozenset()))
    info = replace(info, runner=POOLING, pooling=facts)
    budget = spec.max_num_batched_tokens
    return PoolingEngine(steps, facts, options.scheduler, budget, lora=options.lora), info, spec


def _token_ids(form: PoolingForm, model: ModelOptions) -> Sequence[int]:
    """Token ids of the classifier's tokens.

    Raises:
        StartupError: the tokenizer does not have one of them.
    """
    if not form.classifier_tokens:
        return ()
    tokenizer = find_tokenizer(model).read().tokenizer
    found = {token: tokenizer.token_to_id(token) for token in form.classifier_tokens}
    if missing := [token for token, token_id in found.items() if token_id is None]:
        raise StartupError(f"classifier_from_token: the tokenizer has no token {missing[0]!r}.")
    return [token_id for token_id in found.values() if token_id is not None]


def _facts(form: PoolingForm, spec: PoolingSpec) -> PoolingFacts:
    """The pooling properties of the model.

    Raises:
        StartupError: --pooler-config requests more dimensions than embeddings have.
    """
    facts = PoolingFacts(
        tasks=form.tasks, embedding_size=spec.embedding_size, token_embedding_size=spec.token_embedding_size,
        is_matryoshka=form.is_matryoshka, matryoshka_dimensions=form.matryoshka_dimensions,
        num_labels=len(form.returned_token_ids) or form.num_labels,
        label_names=_chosen_names(form), is_cross_encoder=form.is_cross_encoder,
        is_late_interaction=form.is_late_interaction, type_vocab_size=spec.type_vocab_size,
        pooling_type=spec.pooling_type, normalize=form.normalize, use_activation=form.use_activation,
        prompts=form.prompts, default_prompt_name=form.default_prompt_name, dimensions=form.dimensions,
        added_token_ids=form.added_token_ids,
    )  # fmt: skip
    if form.dimensions is not None and form.dimensions > spec.embedding_size:
        raise StartupError(
            f"--pooler-config: dimensions is {form.dimensions}, but embeddings have {spec.embedding_size} values."
        )
    return facts


def _chosen_names(form: PoolingForm) -> tuple[str, ...]:
    if form.returned_token_ids:
        return tuple(form.label_names[index] for index in form.returned_token_ids)
    return form.label_names if form.has_classes else ()
