"""How a model's hidden states are pooled, determined from its architecture, its files and the options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_svc.pooling_form.architecture import RANKING, Architecture, architecture_of
from engine_svc.pooling_form.sentence_transformers import Dense, SentenceTransformers, read_sentence_transformers
from quire.errors import StartupError
from quire.options.pooling import PoolerConfig, PoolingOptions

EMBED, CLASSIFY, TOKEN_EMBED, TOKEN_CLASSIFY = "embed", "classify", "token_embed", "token_classify"
ALL, STEP = "ALL", "STEP"
_COLBERT_SIZE = 128
_PROJECTION_SIZES = ("colbert_dim", "dim", "embedding_dim", "embed_dim", "dims", "projection_dim")
# Of jina-reranker-m0: the token whose hidden state is scored, and the logit of a score of 0.5.
_RANKING_TOKENS, _RANKING_MEAN = (100,), 2.65
_MOST_LABELS = 2**16


@dataclass(frozen=True, kw_only=True)
class PoolingForm:
    """How a model is served for pooling. For what is known only after loading, see `PoolingInfo`."""

    architecture: Architecture
    tasks: tuple[str, ...]  # that requests may ask for; the first is the default
    sequence_pooling: str  # CLS, LAST or MEAN; empty means the head's own
    by_token: str  # ALL or STEP
    normalize: bool = True
    use_activation: bool = True
    activation: str = "identity"  # of classes: softmax, sigmoid or identity
    dimensions: int | None = None  # default number of embedding dimensions
    is_matryoshka: bool = False
    matryoshka_dimensions: tuple[int, ...] = ()
    logit_mean: float = 0.0
    logit_sigma: float = 1.0
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] = ()
    num_labels: int = 0
    label_names: tuple[str, ...] = ()
    classifier_tokens: tuple[str, ...] = ()  # tokens whose logits are the classes; see _from_tokens
    subtracts_first: bool = False  # there is one class, the last token's logit minus the first one's
    dense: tuple[Dense, ...] = ()
    token_size: int | None = None  # size of token embeddings, if the checkpoint has a projection for them
    max_length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str = ""
    added_token_ids: tuple[int, ...] = ()  # behind each sequence

    @property
    def is_by_steps(self) -> bool:
        """Whether outputs are returned only for tokens that end a step."""
        return self.by_token == STEP and self.step_tag_id is not None

    @property
    def has_classes(self) -> bool:
        """Whether the model computes classes."""
        return CLASSIFY in self.tasks or TOKEN_CLASSIFY in self.tasks

    @property
    def is_cross_encoder(self) -> bool:
        """Whether the model scores how well a pair of texts fits, with a single class."""
        return CLASSIFY in self.tasks and self.num_labels == 1

    @property
    def is_late_interaction(self) -> bool:
        """Whether token embeddings are compared (late interaction)."""
        return self.tasks == (TOKEN_EMBED,)


def pooling_form(config: Mapping[str, Any], folder: Path, options: PoolingOptions) -> PoolingForm:
    """Determines how to serve a model for pooling.

    Args:
        config: config.json.
        folder: of the model.

    Raises:
        StartupError: the model cannot be served for pooling with these options.
    """
    architecture = architecture_of(config)
    if architecture is None:
        names = ", ".join(config.get("architectures") or ()) or "none"
        raise StartupError(f"--runner pooling: the architecture ({names}) does not tell what the model is for.")
    pooler, files = options.pooler(), read_sentence_transformers(folder)
    if _is_embedding(architecture, config, options):
        return _embedding(architecture, config, pooler, files or SentenceTransformers(), has_files=files is not None)
    return _classes(architecture, config, options, pooler)


def _is_embedding(architecture: Architecture, config: Mapping[str, Any], options: PoolingOptions) -> bool:
    """Whether the model computes embeddings, not classes.

    Raises:
        StartupError: it generates text, and the options forbid converting it.
    """
    if options.convert == "none" and architecture.kind == "CausalLM":
        raise StartupError(
            f"--convert none: {architecture.name} generates text. Leave it out, or set it to embed, classify or reward."
        )
    if options.convert in ("auto", "none"):
        return not architecture.has_classes and not config.get("classifier_from_token")
    return options.convert == "embed"


def _embedding(
    architecture: Architecture, config: Mapping[str, Any], pooler: PoolerConfig, files: SentenceTransformers,
    *, has_files: bool,
) -> PoolingForm:  # fmt: skip
    is_late = architecture.kind == "ColBERT" or (has_files and files.pooling is None)
    tasks: tuple[str, ...] = (TOKEN_EMBED,) if is_late else (EMBED, TOKEN_EMBED)
    if pooler.task is not None:
        _check_task(pooler.task, tasks)
        tasks = tuple(sorted(tasks, key=lambda task: task != pooler.task))
    normalizes = files.normalizes if has_files and not is_late else True
    sizes = config.get("matryoshka_dimensions") or ()
    form = PoolingForm(
        architecture=architecture, tasks=tasks, sequence_pooling=pooler.sequence_pooling or files.pooling or "",
        by_token=pooler.token_pooling or ALL,
        normalize=normalizes if pooler.normalize is None else pooler.normalize, dimensions=pooler.dimensions,
        is_matryoshka=bool(config.get("is_matryoshka") or sizes), matryoshka_dimensions=tuple(sizes),
        dense=files.dense, token_size=_projection(config) if architecture.kind == "ColBERT" else None,
        max_length=files.max_length, prompts=files.prompts, default_prompt_name=files.default_prompt_name,
    )  # fmt: skip
    if form.by_token != ALL:
        raise StartupError("--pooler-config: pooling_type STEP is only for models that classify tokens.")
    return form


def _projection(config: Mapping[str, Any]) -> int:
    return int(next(filter(None, (config.get(name) for name in _PROJECTION_SIZES)), _COLBERT_SIZE))


def _classes(
    architecture: Architecture, config: Mapping[str, Any], options: PoolingOptions, pooler: PoolerConfig
) -> PoolingForm:
    by_token = options.convert == "reward" or architecture.kind in (
        "TokenClassification", "RewardModel", "ProcessRewardModel"
    )  # fmt: skip
    tasks = (TOKEN_CLASSIFY,) if by_token and options.convert != "classify" else (CLASSIFY,)
    if pooler.task is not None:
        _check_task(pooler.task, tasks)
    tokens = _from_tokens(architecture, config)
    subtracts = bool(tokens) and (
        bool(config.get("is_original_qwen3_reranker")) or config.get("method") == "from_2_way_softmax"
    )
    num_labels = (1 if subtracts else len(tokens)) if tokens else _num_labels(architecture, config)
    ranks = architecture.kind == RANKING
    is_step = architecture.kind == "ProcessRewardModel" and pooler.step_tag_id is not None
    activates = architecture.kind != "RewardModel" if pooler.activates is None else pooler.activates
    return PoolingForm(
        architecture=architecture, tasks=tasks, sequence_pooling=pooler.sequence_pooling or "",
        by_token=pooler.token_pooling or (STEP if is_step else ALL), use_activation=activates,
        activation=_activation(config, num_labels, tasks[0]), logit_mean=_mean(pooler, _RANKING_MEAN if ranks else 0.0),
        logit_sigma=pooler.logit_sigma or 1.0, step_tag_id=pooler.step_tag_id,
        returned_token_ids=_chosen_labels(pooler, num_labels), num_labels=num_labels,
        label_names=_label_names(config, num_labels), classifier_tokens=tokens, subtracts_first=subtracts,
        added_token_ids=_RANKING_TOKENS if ranks else (),
    )  # fmt: skip


def _check_task(task: str, tasks: tuple[str, ...]) -> None:
    if task not in tasks:
        raise StartupError(
            f"--pooler-config: task {task!r} is not supported by this model; it supports {', '.join(tasks)}."
        )


def _from_tokens(architecture: Architecture, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The tokens whose logits are the classes; empty if the checkpoint has a classification head.

    Raises:
        StartupError: the model generates text, and no tokens are given to compute classes from.
    """
    tokens = config.get("classifier_from_token") or ()
    if tokens and not (isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)):
        raise StartupError(f"config.json: classifier_from_token is {tokens!r}; expected a list of tokens.")
    if architecture.kind == "CausalLM" and not tokens:
        raise StartupError(
            f"{architecture.name} has no classes. Set the tokens whose logits are its classes, as for "
            'Qwen3-Reranker: --hf-overrides \'{"classifier_from_token": ["no", "yes"], '
            '"is_original_qwen3_reranker": true}\'.'
        )
    return tuple(tokens)


def _num_labels(architecture: Architecture, config: Mapping[str, Any]) -> int:
    """The number of classes.

    Raises:
        StartupError: the configured number is invalid.
    """
    if architecture.kind == RANKING:
        return 1
    labels = config.get("id2label")
    default = {"RewardModel": 1}.get(architecture.kind, 2)
    count = config.get("num_labels") or (len(labels) if isinstance(labels, Mapping) and labels else default)
    if not isinstance(count, int) or not 1 <= count <= _MOST_LABELS:
        raise StartupError(f"config.json: num_labels is {count!r}; expected a whole number from 1 to {_MOST_LABELS:,}.")
    return count


def _label_names(config: Mapping[str, Any], num_labels: int) -> tuple[str, ...]:
    labels = config.get("id2label")
    found = labels if isinstance(labels, Mapping) else {}
    names = [found.get(str(index), found.get(index)) for index in range(num_labels)]
    return tuple(f"LABEL_{index}" if name is None else str(name) for index, name in enumerate(names))


def _activation(config: Mapping[str, Any], num_labels: int, task: str) -> str:
    """The activation that sentence-transformers' settings name, else the one for the model's type of problem."""
    named = config.get("sbert_ce_default_activation_function") or _within(
        config, "sentence_transformers", "activation_fn"
    )
    name = str(named or "").rpartition(".")[2].lower()
    if name in ("identity", "sigmoid", "softmax"):
        return name
    if named:
        raise StartupError(
            f"config.json: the activation {named} is not supported; it must be Identity, Sigmoid or Softmax."
        )
    problem = config.get("problem_type") or ""
    if problem == "regression":
        return "identity"
    return "sigmoid" if problem == "multi_label_classification" or num_labels == 1 else "softmax"


def _within(config: Mapping[str, Any], name: str, key: str) -> Any:
    found = config.get(name)
    return found.get(key) if isinstance(found, Mapping) else None


def _mean(pooler: PoolerConfig, default: float) -> float:
    return next((each for each in (pooler.logit_mean, pooler.logit_bias) if each is not None), default)


def _chosen_labels(pooler: PoolerConfig, num_labels: int) -> tuple[int, ...]:
    """The classes to return; empty means all.

    Raises:
        StartupError: there is no such class.
    """
    chosen = tuple(pooler.returned_token_ids or ())
    if wrong := [each for each in chosen if each >= num_labels]:
        raise StartupError(
            f"--pooler-config: returned_token_ids has {wrong[0]}, but the model has {num_labels} classes."
        )
    return chosen
