"""Options for outputs that must follow a schema, a regular expression or a grammar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec

from quire.errors import StartupError
from quire.options.base import option

BACKENDS = ("auto", "guidance", "xgrammar", "outlines")
# Backends that other servers have → why Quire does not.
REFUSED_BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "lm-format-enforcer": "It goes through the vocabulary in Python for each token, which would hold up every "
        "other stream of its engine, and on an internal error it lets the output end, valid or not.",
    }
)


class StructuredOutputsConfig(msgspec.Struct):
    """Keys of --structured-outputs-config, with their defaults."""

    backend: str = "auto"
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    reasoning_parser: str = ""
    reasoning_parser_plugin: str = ""
    enable_in_reasoning: bool = False


def structured_outputs_config_option() -> Any:
    """Declares a JSON object for the tokenizer service, which compiles constraints, and the gateway, which tracks
    reasoning."""
    return option(
        {},
        "Settings of structured outputs, as JSON. Keys: backend (auto, guidance, xgrammar or outlines: what compiles "
        "and enforces constraints; requests may choose another), disable_fallback (refuse what the backend cannot "
        "express instead of trying another), disable_any_whitespace (JSON without spaces and line breaks between its "
        "parts), disable_additional_properties (objects have only the properties in their schema), reasoning_parser "
        "and reasoning_parser_plugin (same as the flags of these names) and enable_in_reasoning (constraints apply to "
        "the reasoning too, instead of only after it).",
        schema=StructuredOutputsConfig,
    )


def _deprecated(key: str) -> str:
    return f"Use --structured-outputs-config '{{\"{key}\": …}}'."


@dataclass(frozen=True)
class StructuredOutputsOptions:
    """Structured outputs."""

    group: ClassVar[str] = "StructuredOutputsConfig"

    structured_outputs_config: dict[str, Any] = structured_outputs_config_option()
    guided_decoding_backend: str | None = option(
        None, "Backend that compiles and enforces constraints.", choices=BACKENDS, refused=REFUSED_BACKENDS,
        deprecated=_deprecated("backend"),
    )  # fmt: skip
    guided_decoding_disable_fallback: bool | None = option(
        None,
        "Refuses what the backend cannot express instead of trying another.",
        deprecated=_deprecated("disable_fallback"),
    )
    guided_decoding_disable_any_whitespace: bool | None = option(
        None, "JSON without spaces and line breaks between its parts.", deprecated=_deprecated("disable_any_whitespace")
    )
    guided_decoding_disable_additional_properties: bool | None = option(
        None,
        "Objects have only the properties in their schema.",
        deprecated=_deprecated("disable_additional_properties"),
    )
    constraint_timeout_seconds: float = option(
        1.5, "Maximum time to compile one constraint.", minimum=0.05, maximum=30.0,
        variables=("VLLM_REGEX_COMPILATION_TIMEOUT_S",),
    )  # fmt: skip
    constraint_cache_bytes: int = option(
        512 * 2**20, "Memory of the tokenizer service for compiled constraints, in bytes. VLLM_XGRAMMAR_CACHE_MB is in "
        "MiB.", minimum=0, variables=("VLLM_XGRAMMAR_CACHE_MB",),
    )  # fmt: skip

    def chosen(self) -> StructuredOutputsConfig:
        """The configuration, whichever flags it was given by.

        Raises:
            StartupError: the backend does not exist, or two flags contradict each other.
        """
        config = dict(self.structured_outputs_config)
        for key in StructuredOutputsConfig.__struct_fields__:
            value = getattr(self, f"guided_decoding_{key}", None)
            if value is None:
                continue
            if config.setdefault(key, value) != value:
                flag = f"--guided-decoding-{key.replace('_', '-')}"
                raise StartupError(
                    f"--structured-outputs-config and {flag} set different values for {key}. Leave out {flag}."
                )
        chosen = msgspec.convert(config, StructuredOutputsConfig)
        if chosen.backend not in BACKENDS:
            why = REFUSED_BACKENDS.get(chosen.backend, "It does not exist.")
            raise StartupError(
                f"--structured-outputs-config has the backend {chosen.backend!r}. {why} Choose one of "
                f"{', '.join(BACKENDS)}."
            )
        return chosen
