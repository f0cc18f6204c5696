"""adapter_config.json, as written by the PEFT library: the scales of an adapter's parts, and unsupported settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import regex

from engine_svc.adapters.header import broken, regular_size

CONFIG_FILE = "adapter_config.json"
MAX_CONFIG_BYTES = 2**20
# Modules that an adapter may contain whole weights of, by the last part of their names.
HEAD = "lm_head"
WHOLE_MODULES = (HEAD, "embed_tokens")
_MAX_EXPRESSIONS = 64
_MATCH_SECONDS = 0.1

# Settings about training or about the target modules, which can be ignored: the tensors show their outcome.
_OF_TRAINING = frozenset(
    [
        "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config",
        "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern",
        "layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_core",
        "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision",
        "runtime_config", "target_modules", "task_type", "use_rslora", "velora_config",
    ]
)  # fmt: skip
# Settings with which a layer is not x W + scale x A B, with the reason given to the user.
_MERGE = "Merge the adapter into its base model with the PEFT library (merge_and_unload), and serve the result."
_REFUSED = {
    "alora_invocation_tokens": "an adapter that starts in the middle of a prompt",
    "arrow_config": "adapters chosen for each token (Arrow)",
    "ensure_weight_tying": "weights shared by the embedding and the head",
    "kasa_config": "its own singular values between the low-rank matrices (KaSA)",
    "layer_replication": "layers that the base model does not have",
    "lora_bias": "biases on the low-rank matrices",
    "megatron_config": "Megatron's layers",
    "monteclora_config": "randomly drawn matrices (MonteCLoRA)",
    "target_parameters": "matrices of parameters, not of modules",
    "trainable_token_indices": "new rows for some tokens",
    "use_bdlora": "block-diagonal low-rank matrices",
    "use_dora": "weights decomposed into magnitude and direction (DoRA)",
    "use_qalora": "inputs averaged in groups (QA-LoRA)",
}
# Initializations that subtract the adapter's initial value from the base's weights: it does not fit the original base.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class _Patterns:
    """Values by module name, matched as PEFT does: by the end of a name, or by a regular expression for it."""

    plain: Mapping[str, tuple[int, float]]  # end of a name → (position among all patterns, value)
    expressions: Sequence[tuple[int, regex.Pattern[str], float]]

    def find(self, module: str, default: float) -> float:
        """The value of the first pattern that matches a module's name, else `default`."""
        parts = module.split(".")
        ends = (".".join(parts[index:]) for index in range(len(parts)))
        found = [self.plain[end] for end in ends if end in self.plain]
        try:
            found += [
                (n, value) for n, each, value in self.expressions if each.fullmatch(module, timeout=_MATCH_SECONDS)
            ]
        except TimeoutError as error:
            raise broken(f"{CONFIG_FILE}: an expression of rank_pattern or alpha_pattern takes too long.") from error
        return min(found)[1] if found else default


@dataclass(frozen=True)
class AdapterConfig:
    """Configuration of an adapter that its tensors do not contain."""

    base_model_name: str
    rank: int
    alpha: float
    ranks: _Patterns
    alphas: _Patterns
    use_rslora: bool

    def rank_of(self, module: str) -> int:
        """The rank of the low-rank part of a module."""
        return int(self.ranks.find(module, self.rank))

    def scale_of(self, module: str) -> float:
        """The factor that the low-rank part of a module is multiplied by."""
        rank = self.rank_of(module)
        return self.alphas.find(module, self.alpha) / (math.sqrt(rank) if self.use_rslora else rank)


class _Config(msgspec.Struct):
    """The PEFT settings that are used here; of the others only the names are checked."""

    peft_type: str
    r: int
    lora_alpha: float
    base_model_name_or_path: str | None = None
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    use_rslora: bool | None = None
    bias: str | None = None
    modules_to_save: list[str] | None = None
    init_lora_weights: bool | str | None = None


def read_config(folder: Path) -> AdapterConfig:
    """Reads the configuration in a folder.

    Raises:
        InvalidRequest: it is missing, damaged, or has an unsupported setting, which the message names.
    """
    file = folder / CONFIG_FILE
    if regular_size(file) > MAX_CONFIG_BYTES:
        raise broken(f"{file} has more than {MAX_CONFIG_BYTES} bytes.")
    try:
        found = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        kind = str(found.get("peft_type"))
        if kind != "LORA":
            raise broken(f"{file}: peft_type is {kind[:50]!r}; only LORA is supported.")
        config = msgspec.convert(found, _Config)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise broken(f"{file} is damaged: {error}.") from error
    _check(file, config, found)
    return AdapterConfig(
        base_model_name=config.base_model_name_or_path or "",
        rank=config.r,
        alpha=config.lora_alpha,
        ranks=_patterns(file, "rank_pattern", config.rank_pattern or {}),
        alphas=_patterns(file, "alpha_pattern", config.alpha_pattern or {}),
        use_rslora=bool(config.use_rslora),
    )


def _check(file: Path, config: _Config, found: Mapping[str, Any]) -> None:
    if min((config.r, *(config.rank_pattern or {}).values())) < 1:
        raise broken(f"{file}: ranks must be at least 1; r is {config.r}, rank_pattern {config.rank_pattern or {}}.")
    if not all(map(math.isfinite, (config.lora_alpha, *(config.alpha_pattern or {}).values()))):
        raise broken(f"{file}: lora_alpha and the values of alpha_pattern must be finite numbers.")
    for name in (name for name, value in found.items() if value and name not in _OF_TRAINING):
        why = _REFUSED.get(name)
        if why is None:
            raise broken(f"{file} has the setting {name[:100]!r}, which is not known. Remove it if it has no effect.")
        raise broken(f"{file}: {name} is not supported: {why}. {_MERGE}")
    if config.bias not in (None, "none"):
        raise broken(f"{file}: bias is {config.bias[:50]!r}; only none is supported. {_MERGE}")
    if isinstance(config.init_lora_weights, str) and config.init_lora_weights.lower().startswith(_CHANGES_BASE):
        raise broken(
            f"{file}: init_lora_weights is {config.init_lora_weights[:50]!r}, which changes the base model's "
            "weights. Save the adapter with PEFT and path_initial_model_for_weight_conversion, which makes one for "
            "the unchanged base model."
        )
    for name in config.modules_to_save or ():
        if name.rpartition(".")[2] not in WHOLE_MODULES:
            raise broken(
                f"{file}: modules_to_save names {name[:100]!r}; only {' and '.join(WHOLE_MODULES)} are supported."
            )


def _patterns(file: Path, setting: str, values: Mapping[str, float]) -> _Patterns:
    plain, expressions = dict[str, tuple[int, float]](), list[tuple[int, regex.Pattern[str], float]]()
    for place, (key, value) in enumerate(values.items()):
        if regex.fullmatch(r"[\w.]+", key):
            plain[key] = (place, value)
            continue
        try:
            expressions.append((place, regex.compile(rf"(?:.*\.)?(?:{key})"), value))
        except regex.error as error:
            raise broken(
                f"{file}: {setting} has {key[:100]!r}, which is not a valid regular expression: {error}."
            ) from error
    if len(expressions) > _MAX_EXPRESSIONS:
        raise broken(f"{file}: {setting} has {len(expressions)} expressions; at most {_MAX_EXPRESSIONS} are allowed.")
    return _Patterns(plain, expressions)
