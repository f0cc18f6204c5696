"""Writes flags.yaml anew, from the declarations that the server is made from: `python -m demo_model.corpus.flags`.

The corpus reads the file and not the declarations, so that it stays the one that the models in the box were trained on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from quire.options.base import OptionField, fields_of
from quire.options.engine import EngineOptions
from quire.options.gateway import GatewayOptions
from quire.options.model import ModelOptions
from quire.options.router import RouterOptions
from quire.options.serve import ServeOptions
from quire.options.tokenizer import TokenizerOptions


def declared() -> dict[str, str]:
    """Flag → first sentence of its help."""
    found: dict[str, str] = {}
    for option in options():
        sentence = re.split(r"(?<=[a-z0-9)])[.;:] ", str(option.metadata["help"]))[0].rstrip(".")
        found[option.flag] = sentence + "."
    return found


def options() -> Iterator[OptionField]:
    """Of `quire serve`."""
    for group in (ServeOptions, ModelOptions, EngineOptions, GatewayOptions, RouterOptions, TokenizerOptions):
        yield from fields_of(group)


def main() -> None:
    text = yaml.safe_dump(declared(), sort_keys=True, allow_unicode=True, width=120)
    Path(__file__).with_name("flags.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
