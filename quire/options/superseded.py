"""Flags of earlier versions of vLLM whose settings are keys of --speculative-config now.

They are answered with the JSON that says the same, whole, so that it can be pasted.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

import click

# Flag, without dashes → key.
_KEYS: Mapping[str, str] = {
    "speculative-model": "model",
    "num-speculative-tokens": "num_speculative_tokens",
    "speculative-model-quantization": "quantization",
    "speculative-draft-tensor-parallel-size": "draft_tensor_parallel_size",
    "spec-draft-tp": "draft_tensor_parallel_size",
    "speculative-max-model-len": "max_model_len",
    "speculative-disable-by-batch-size": "disable_by_batch_size",
    "ngram-prompt-lookup-max": "prompt_lookup_max",
    "ngram-prompt-lookup-min": "prompt_lookup_min",
    "spec-decoding-acceptance-method": "acceptance_method",
    "typical-acceptance-sampler-posterior-threshold": "posterior_threshold",
    "typical-acceptance-sampler-posterior-alpha": "posterior_alpha",
    "disable-logprobs-during-spec-decoding": "disable_logprobs",
}
_LOOKUP_KEYS = frozenset({"prompt_lookup_max", "prompt_lookup_min"})
_LOOKUP = "[ngram]"  # what stood in the place of a model
_MQA_SCORER = "speculative-disable-mqa-scorer"

_Given = tuple[str, str, str | None]  # as it was written, key, value


def check_superseded(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """
    Args:
        environment: option name with underscores → value, of the variables that are set.

    Raises:
        click.UsageError: a flag or a variable is of the superseded ones.
    """
    words = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    names = {word.partition("=")[0].lstrip("-") for word in words if word.startswith("-")}
    if _MQA_SCORER in names or _MQA_SCORER.replace("-", "_") in environment:
        raise click.UsageError(
            f"--{_MQA_SCORER} has nothing to switch off: guessed tokens are always verified in one pass, and never by "
            "a batch that is expanded. Leave it out."
        )
    if given := [*_flags(words), *_variables(environment)]:
        config = {key: _json(value) for _, key, value in given}
        if _LOOKUP_KEYS & config.keys() and config.get("model", _LOOKUP) == _LOOKUP:
            config = {"method": "ngram"} | {key: value for key, value in config.items() if key != "model"}
        shown = " ".join(dict.fromkeys(name for name, _, _ in given))
        raise click.UsageError(f"In place of {shown} use --speculative-config {shlex.quote(json.dumps(config))}")


def _flags(words: Sequence[str]) -> list[_Given]:
    found: list[_Given] = []
    for word, following in zip(words, [*words[1:], None], strict=False):
        flag, equals, value = word.partition("=")
        key = _KEYS.get(flag.lstrip("-")) if flag.startswith("-") else None
        if key:
            alone = following is None or following.startswith("-")
            found.append((flag, key, value if equals else None if alone else following))
    return found


def _variables(environment: Mapping[str, str]) -> list[_Given]:
    names = {flag.replace("-", "_"): key for flag, key in _KEYS.items()}
    return [
        (f"QUIRE_{name.upper()}", names[name], value) for name, value in sorted(environment.items()) if name in names
    ]


def _json(value: str | None) -> object:
    """As JSON has it; a flag without a value is a switch."""
    if value is None:
        return True
    try:
        return json.loads(value.lower()) if value in ("True", "False") else json.loads(value)
    except ValueError:
        return value
