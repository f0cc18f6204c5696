"""`--tokenizer-mode`: the readers for a model's tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from quire.errors import StartupError
from quire.extras import needed
from quire.options.model import TOKENIZER_MODES, ModelOptions
from quire.registry import load_plugin, registry
from quire.tokenizer.configuration import fields_of
from quire.tokenizer.files import TokenizerFiles, read_tokenizer_files, tokenizer_folder
from quire.tokenizer.tekken import FILE as TEKKEN
from quire.tokenizer.tekken import read_tekken
from quire.tokenizer.vocabulary_files import WHOLE

logger = logging.getLogger(__name__)

_PLUGINS = "quire.tokenizers"
# Each of these modes is named after the model_type that it is for.
DEEPSEEK_V32, DEEPSEEK_V4 = "deepseek_v32", "deepseek_v4"
_DEEPSEEK = {DEEPSEEK_V32: "DeepSeek V3.2", DEEPSEEK_V4: "DeepSeek V4"}


@dataclass(frozen=True)
class TokenizerPlace:
    """The location of a tokenizer, for processes that read it themselves."""

    mode: str
    name: str  # for mode custom
    folder: str  # for all other modes

    def read(self) -> TokenizerFiles:
        """Reads the tokenizer.

        Raises:
            StartupError: it cannot be read.
        """
        return _READERS[self.mode](self)


def find_tokenizer(model: ModelOptions) -> TokenizerPlace:
    """Locates the model's tokenizer, and downloads it if it is a name on the hub.

    Raises:
        StartupError: it does not exist.
    """
    if (mode := model.tokenizer_mode) == "custom":
        return TokenizerPlace(mode, model.tokenizer or "", "")
    folder = tokenizer_folder(model)
    if mode == "auto" and not (folder / WHOLE).is_file() and (folder / TEKKEN).is_file():
        mode = "mistral"
    return TokenizerPlace(mode, model.tokenizer or "", str(folder))


def model_type(folder: Path) -> str:
    """The model_type in a folder's config.json; empty if there is none, or no such file."""
    return str(fields_of(folder / "config.json").get("model_type") or "")


def _own(place: TokenizerPlace) -> TokenizerFiles:
    return read_tokenizer_files(Path(place.folder))


def _deepseek(place: TokenizerPlace) -> TokenizerFiles:
    if model_type(Path(place.folder)) != place.mode:
        raise StartupError(
            f"--tokenizer-mode {place.mode} is for {_DEEPSEEK[place.mode]}, whose config.json has the model_type "
            f"{place.mode}; that in {place.folder} has another one. Leave the option out."
        )
    return replace(_own(place), chat_templates={})


def _slow(place: TokenizerPlace) -> TokenizerFiles:
    logger.info("--tokenizer-mode slow is like hf: as in Transformers 5, there are no slow tokenizers")
    return _own(place)


def _mistral(place: TokenizerPlace) -> TokenizerFiles:
    with needed("--tokenizer-mode mistral", "mistral-common", "mistral"):
        import mistral_common  # noqa: F401  (writes conversations, in another process)
    return read_tekken(Path(place.folder))


def _custom(place: TokenizerPlace) -> TokenizerFiles:
    found = load_plugin("--tokenizer-mode custom --tokenizer", {}, _PLUGINS, place.name)()
    if not isinstance(found, TokenizerFiles):
        raise StartupError(
            f"--tokenizer-mode custom --tokenizer {place.name} returned {type(found).__name__}; expected a function "
            "without arguments that returns quire.tokenizer.files.TokenizerFiles."
        )
    return found


_READERS: Mapping[str, Callable[[TokenizerPlace], TokenizerFiles]] = registry(
    "--tokenizer-mode", TOKENIZER_MODES,
    {
        "auto": _own, "hf": _own, "slow": _slow, "mistral": _mistral, **dict.fromkeys(_DEEPSEEK, _deepseek),
        "custom": _custom,
    },
)  # fmt: skip
