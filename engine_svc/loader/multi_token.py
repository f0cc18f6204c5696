"""Loads the layers for multi-token prediction of a model's own checkpoint, as a draft head."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from engine_svc.layers.parameter import TensorSlice
from engine_svc.loader.formats.base import CheckpointFormat, LoadFormat
from engine_svc.loader.formats.registry import create_format
from engine_svc.loader.heads import MakeHead, build_head
from engine_svc.loader.model import BuiltModel
from engine_svc.loader.names import without_prefixes
from engine_svc.loader.source import TensorSource
from engine_svc.models import exaone4, exaone_moe, hy_v4, mellum, mimo, nemotron_h, step3
from engine_svc.models.config import ModelConfig, attending_layer, layer_apart
from engine_svc.models.draft import Draft
from engine_svc.models.heads import HeadForm
from engine_svc.models.multi_token_head import MultiTokenHead
from engine_svc.models.registry import text_part
from engine_svc.models.stream_head import StreamHead, head_layer
from engine_svc.parallel.group import ParallelGroups
from quire.errors import StartupError
from quire.options.engine import EngineOptions

# Parts of names of the embedding and the output layer, which some layers have again.
_ALSO_THE_MODELS = (".embed_tokens.", ".shared_head.head.", ".shared_head.weight")


@dataclass(frozen=True)
class _Family:
    """How a family's checkpoints have layers for multi-token prediction, of which the first is used.

    Attributes:
        names: see HeadForm, with the number of the target's layers in place of {}.
        layer: the layer's shape, from the target's configuration and its config.json.
        count: the field of config.json with the number of such layers, and `default_count`, if it is left out.
        reads_sums: the layer reads what the target's last norm reads, not what it returns.
        own_output, features_first, passes_normalized: see HeadForm.
    """

    names: Mapping[str, str]
    layer: Callable[[ModelConfig, Mapping[str, Any]], ModelConfig] = lambda config, _: attending_layer(config)
    make: MakeHead = MultiTokenHead
    count: str = "num_nextn_predict_layers"
    default_count: int | None = None
    reads_sums: bool = False
    own_output: bool = False
    features_first: bool = False
    passes_normalized: bool = True

    def form(self, config: ModelConfig, raw: Mapping[str, Any]) -> HeadForm:
        """See HeadForm; its configuration renames the checkpoint's tensors to the head's."""
        names = {ours: name.format(config.num_layers) for ours, name in self.names.items()}
        inner_first = sorted(names.items(), key=lambda each: len(each[1]), reverse=True)
        renames = tuple((rf"^(?:.*\.)?{re.escape(name)}\.", f"{ours}.") for ours, name in inner_first)
        layer = self.layer(config, raw)
        shape = replace(
            layer, renames=(*renames, *layer.renames), ignored_names=(*layer.ignored_names, *_ALSO_THE_MODELS)
        )
        return HeadForm(
            shape, own_output=self.own_output, names=names, features_first=self.features_first,
            passes_normalized=self.passes_normalized,
        )  # fmt: skip


def _in_layer(layer: str, output_norm: str = "final_layernorm") -> Mapping[str, str]:
    """The names of checkpoints that have everything in the layer, by DeepSeek's names except for the last norm's."""
    return {
        "layers.0": layer, "embedding_norm": f"{layer}.enorm", "hidden_norm": f"{layer}.hnorm",
        "projection": f"{layer}.eh_proj", "output_norm": f"{layer}.{output_norm}",
    }  # fmt: skip


# Transformers has no such layers of MiMo, Hunyuan, EXAONE, Nemotron H, Ernie and Ling. What is assumed of them is what
# vLLM does, for Ernie FastDeploy: names, the order of embedding and features, and the norms before and after.
_DEEPSEEK = _Family(_in_layer("layers.{}", "shared_head.norm"), passes_normalized=False)
_LIKE_IT = _Family(_in_layer("layers.{}"))
_NAMED_APART = {
    "layers.0": "mtp.layers.0", "embedding_norm": "mtp.pre_fc_norm_embedding", "hidden_norm": "mtp.pre_fc_norm_hidden",
    "projection": "mtp.fc", "output_norm": "mtp.norm",
}  # fmt: skip
_QWEN = _Family(_NAMED_APART, count="mtp_num_hidden_layers", default_count=1)
_FAMILIES = {
    "BailingHybridForCausalLM": _LIKE_IT,
    "BailingMoeV3ForCausalLM": _LIKE_IT,
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "DeepseekV32ForCausalLM": _DEEPSEEK,
    "DeepseekV4ForCausalLM": _Family({"mtp.0": "mtp.0"}, head_layer, StreamHead, reads_sums=True),
    "Ernie4_5_MoeForCausalLM": _Family(
        {
            "layers.0": "mtp_block.0", "embedding_norm": "mtp_emb_norm.0", "hidden_norm": "mtp_hidden_norm.0",
            "projection": "mtp_linear_proj.0",
        },
        lambda config, _: layer_apart(config, None),
    ),
    "Exaone4ForCausalLM": _Family(
        _NAMED_APART, lambda config, _: exaone4.multi_token_layer(config), default_count=1
    ),
    "ExaoneMoeForCausalLM": _Family(_NAMED_APART, exaone_moe.multi_token_layer),
    "Glm4ForCausalLM": _DEEPSEEK,  # of GLM-OCR
    "Glm4MoeForCausalLM": _DEEPSEEK,
    "Glm4MoeLiteForCausalLM": _DEEPSEEK,
    "GlmMoeDsaForCausalLM": _DEEPSEEK,
    "HYV3ForCausalLM": _LIKE_IT,
    "HYV4ForCausalLM": _Family(_in_layer("mtp_layers.0"), lambda config, _: hy_v4.multi_token_layer(config)),
    "MellumForCausalLM": _Family(_NAMED_APART, mellum.multi_token_layer),
    "MiMoForCausalLM": _Family(
        {
            "layers.0": "mtp_layers.0", "embedding_norm": "mtp_layers.0.token_layernorm",
            "hidden_norm": "mtp_layers.0.hidden_layernorm", "projection": "mtp_layers.0.input_proj",
            "output_norm": "mtp_layers.0.final_layernorm",
        },
        reads_sums=True, features_first=True,
    ),
    "MiMoV2FlashForCausalLM": _Family(
        _in_layer("mtp.layers.0"), lambda config, _: mimo.multi_token_layer(config), default_count=1
    ),
    "NemotronHForCausalLM": _Family(
        {**_in_layer("mtp.layers.0"), "layers.1": "mtp.layers.1", "output_norm": "mtp.layers.1.final_layernorm"},
        nemotron_h.multi_token_layers,
    ),
    "Qwen3NextForCausalLM": _QWEN,
    "Qwen3_5ForCausalLM": _QWEN,
    "Qwen3_5MoeForCausalLM": _QWEN,
    "Step3p5ForCausalLM": _Family(
        _in_layer("layers.{}", "shared_head.norm"), lambda _, raw: step3.multi_token_layer(raw), reads_sums=True,
        own_output=True, passes_normalized=False,
    ),
}  # fmt: skip


def load_multi_token(
    folder: Path, raw: Mapping[str, Any], options: EngineOptions, target: BuiltModel, groups: ParallelGroups,
    device: torch.device,
) -> Draft:  # fmt: skip
    """Loads the first multi-token prediction layer of the target's own checkpoint.

    Args:
        folder: of the target.
        raw: the target's config.json.

    Raises:
        StartupError: there is no such layer.
    """
    raw, config = text_part(raw), target.model.config
    family = _FAMILIES.get(config.architecture)
    if family is None:
        raise StartupError(
            f"Multi-token prediction is not supported for {config.architecture}, only for {', '.join(_FAMILIES)}. "
            "Use draft_model, eagle3, ngram or suffix."
        )
    count = raw.get(family.count, family.default_count)
    if not isinstance(count, int) or count < 1:
        raise StartupError(
            f"{folder}: {family.count} in config.json is {count!r}; expected 1 or more: the checkpoint has no layers "
            "for multi-token prediction. Use draft_model, eagle3, ngram or suffix."
        )
    form = family.form(config, raw)
    source: TensorSource | LoadFormat = create_format(folder, options.load)
    if isinstance(source, CheckpointFormat):
        source = _Part(source, form.names.values())
        if not source.names():
            first = next(iter(form.names.values()))
            raise StartupError(
                f"{folder}: the checkpoint has no tensor {first}.*, a layer for multi-token prediction; it may have "
                "been lost when the checkpoint was converted. Use the original."
            )
    if family.reads_sums:
        target.model.tap([config.num_layers])
    return build_head(family.make, form, raw, source, options, target, groups, device)


class _Part(TensorSource):
    """Some modules of a checkpoint."""

    def __init__(self, whole: CheckpointFormat, modules: Iterable[str]) -> None:
        self.folder = whole.folder
        self._whole, self._prefixes = whole, tuple(f"{module}." for module in modules)

    def _has(self, name: str) -> bool:
        return without_prefixes(name).startswith(self._prefixes)

    def names(self) -> Mapping[str, Path]:
        """See TensorSource.names."""
        return {name: file for name, file in self._whole.names().items() if self._has(name)}

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """See TensorSource.tensors."""
        return ((name, found) for name, found in self._whole.tensors() if self._has(name))
