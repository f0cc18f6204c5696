"""All model families that can be read from GGUF."""

from __future__ import annotations

from collections.abc import Mapping

from engine_svc.gguf.architecture import Architecture
from engine_svc.gguf.dense import DENSE
from engine_svc.gguf.facts import Facts
from engine_svc.gguf.gemma4 import GEMMA4
from engine_svc.gguf.latent import LATENT
from engine_svc.gguf.mixtures import MIXTURES
from engine_svc.gguf.recurrent import RECURRENT
from quire.errors import StartupError

# By llama.cpp's names, with a suffix after a space if several families have the same name.
ARCHITECTURES: Mapping[str, Architecture] = {**DENSE, **GEMMA4, **MIXTURES, **RECURRENT, **LATENT}
# Families that llama.cpp has a name for, but neither converts nor runs.
_NAMES_ALONE = frozenset({"gptj"})


def architecture_of(facts: Facts) -> Architecture:
    """The family of a file.

    Raises:
        StartupError: the family cannot be read from GGUF.
    """
    name = facts.architecture
    found = [each for key, each in ARCHITECTURES.items() if key.partition(" ")[0] == name]
    meant = [each for each in found if each.when is not None and each.when(facts)]
    meant += [each for each in found if each.when is None]
    if not meant:
        reason = "llama.cpp itself only has a name for it" if name in _NAMES_ALONE else f"supported are {names_told()}"
        raise StartupError(
            f"{facts.model.files[0]}: the architecture {name!r} is not supported in GGUF; {reason}. Use the model's "
            "safetensors."
        )
    return meant[0]


def names_told() -> str:
    """The names of all families that can be read, for messages."""
    return ", ".join(dict.fromkeys(key.partition(" ")[0] for key in ARCHITECTURES))
