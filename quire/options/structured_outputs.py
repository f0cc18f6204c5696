"""Options for outputs that must follow a schema, a regular expression or a grammar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from quire.errors import StartupError
from quire.options.base import option

BACKENDS = ("auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer")


class StructuredOutputsConfig(msgspec.Struct):
    """Keys of --structured-outputs-config, with their defaults."""

    backend: str = "auto"
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    reasoning_parser: str = ""
    enable_in_reasoning: bool = False


def structured_outputs_config_option() -> Any:
    """Declares a JSON object for the tokenizer service, which compiles constraints, and the gateway, which tracks
    reasoning."""
    return option(
        {},
        "How outputs are held to what requests ask of them, as JSON. Keys: backend (auto, guidance, xgrammar or "
        "outlines: which compiles and follows constraints; requests may choose another), disable_fallback (refuse what "
        "it cannot express, instead of trying another), disable_any_whitespace (JSON without spaces and line breaks "
        "between its parts), disable_additional_properties (objects have the properties alone that their schema "
        "names), reasoning_parser (as --reasoning-parser) and enable_in_reasoning (constraints hold for the thinking "
        "too, instead of beginning behind it).",
        schema=StructuredOutputsConfig,
    )


def _deprecated(key: str) -> str:
    return f"Use --structured-outputs-config '{{\"{key}\": …}}'."


@dataclass(frozen=True)
class StructuredOutputsOptions:
    """How outputs are held to a schema, an expression or a grammar."""

    group: ClassVar[str] = "StructuredOutputsConfig"

    structured_outputs_config: dict[str, Any] = structured_outputs_config_option()
    guided_decoding_backend: str | None = option(
        None, "Which backend compiles and follows constraints.", choices=BACKENDS, deprecated=_deprecated("backend")
    )
    guided_decoding_disable_fallback: bool | None = option(
        None, "Refuse what the backend cannot express.", deprecated=_deprecated("disable_fallback")
    )
    guided_decoding_disable_any_whitespace: bool | None = option(
        None, "JSON without spaces and line breaks between its parts.", deprecated=_deprecated("disable_any_whitespace")
    )
    guided_decoding_disable_additional_properties: bool | None = option(
        None,
        "Objects have the properties alone that their schema names.",
        deprecated=_deprecated("disable_additional_properties"),
    )
    constraint_timeout_seconds: float = option(
        1.5, "Longest time that compiling one constraint may take.", minimum=0.05, maximum=30.0
    )
    constraint_cache_bytes: int = option(
        512 * 2**20, "Compiled constraints are kept in so much memory of the tokenizer service. As "
        "VLLM_XGRAMMAR_CACHE_MB, in MiB.", minimum=0, variables=("VLLM_XGRAMMAR_CACHE_MB",),
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
                raise StartupError(f"--structured-outputs-config and {flag} do not agree on {key}; leave {flag} out.")
        chosen = msgspec.convert(config, StructuredOutputsConfig)
        if chosen.backend not in BACKENDS:
            raise StartupError(
                f"--structured-outputs-config has the backend {chosen.backend!r}; choose one of {', '.join(BACKENDS)}."
            )
        return chosen
