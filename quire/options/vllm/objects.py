"""Translates vLLM's `--attention-config` and `--quantization-config`: keys with a counterpart here become options."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import click

from quire.options.nearest import nearest
from quire.options.quantizations import ONLINE_SCHEMES

_ATTENTION, _QUANTIZATION = "--attention-config", "--quantization-config"
# Keys without a counterpart → values that ask for nothing, besides null.
_ATTENTION_KEYS: Mapping[str, tuple[Any, ...]] = {
    "backend_per_kind": ({},), "flash_attn_version": (), "use_prefill_decode_attention": (False,),
    "flash_attn_max_num_splits_for_cuda_graph": (32,), "tq_max_kv_splits_for_cuda_graph": (32,),
    "use_cudnn_prefill": (False,), "use_trtllm_ragged_deepseek_prefill": (False,), "use_trtllm_attention": (),
    "disable_flashinfer_prefill": (False, True), "disable_flashinfer_q_quantization": (False,),
    "use_prefill_query_quantization": (False,),
}  # fmt: skip
_GLOBAL, _LINEAR, _EXPERTS = "global_scheme", ("linear", "linear_scheme_override"), ("moe", "moe_scheme_override")


def arguments_of(flag: str, text: str) -> list[str]:
    """Returns the equivalent arguments.

    Raises:
        click.UsageError: it is no object, or a key is unknown or asks for what Quire does not have.
    """
    try:
        config = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{flag} {text!r} is not JSON: {error}.") from error
    if not isinstance(config, dict):
        raise click.UsageError(f"{flag} {text!r} is not a JSON object.")
    return TRANSLATED[flag]({key: value for key, value in config.items() if value is not None})


def _attention(config: dict[str, Any]) -> list[str]:
    _check_keys(_ATTENTION, config, ("backend", *_ATTENTION_KEYS))
    for key, neutral in _ATTENTION_KEYS.items():
        if key in config and config[key] not in neutral:
            raise click.UsageError(
                f"{_ATTENTION}: {key} {json.dumps(config[key])} chooses among vLLM's kernels, but Quire has its own, "
                "one for each device and kind of layer. Leave it out."
            )
    backend = str(config.get("backend", "auto"))
    return [] if backend == "auto" else ["--attention-backend", backend]


def _quantization(config: dict[str, Any]) -> list[str]:
    _check_keys(_QUANTIZATION, config, (_GLOBAL, *_LINEAR, *_EXPERTS, "ignore"))
    if config.get("ignore"):
        raise click.UsageError(
            f"{_QUANTIZATION}: ignore {json.dumps(config['ignore'])} is not supported: --quantization quantizes all "
            "linear layers. Leave it out, or use a checkpoint that is quantized already."
        )
    own, scheme = {}, config.get(_GLOBAL)
    for kind, keys in (("linear", _LINEAR), ("experts", _EXPERTS)):
        own[kind] = next((config[key] for key in keys if key in config), scheme)
    for value in filter(None, own.values()):
        if value not in tuple(ONLINE_SCHEMES):
            raise click.UsageError(
                f"{_QUANTIZATION}: {json.dumps(value)} is not a scheme that weights can be quantized to while they are "
                f"loaded: {', '.join(ONLINE_SCHEMES)}. Others are at --quantization."
            )
    methods = {kind: ONLINE_SCHEMES[value] if value else None for kind, value in own.items()}
    if methods["experts"] == "experts_int8" and methods["linear"] in (None, "experts_int8"):
        return ["--quantization", "experts_int8"]
    if methods["linear"] != methods["experts"] or methods["linear"] == "experts_int8":
        raise click.UsageError(
            f"{_QUANTIZATION}: linear layers and experts are quantized in the same way: choose it with {_GLOBAL}. Only "
            f"int8_per_channel_weight_only is for experts alone, as {_EXPERTS[0]}."
        )
    return ["--quantization", methods["linear"]] if methods["linear"] else []


def _check_keys(flag: str, config: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in config:
        if key not in known:
            raise click.UsageError(f"{flag}: {key} is not known.{nearest(key, known)} Known keys: {', '.join(known)}.")


# Flag → what turns an object, without nulls, into arguments.
TRANSLATED: Mapping[str, Callable[[dict[str, Any]], list[str]]] = MappingProxyType(
    {_ATTENTION: _attention, _QUANTIZATION: _quantization}
)
