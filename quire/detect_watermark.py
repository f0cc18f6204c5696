"""`quire detect-watermark`: tests whether a text was marked with the key of --watermark-config."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click
import msgspec

from quire.errors import StartupError
from quire.extras import needed
from quire.options.detect_watermark import DetectWatermarkOptions
from quire.options.model import ModelOptions
from quire.options.watermark import WatermarkOptions
from quire.watermark import detect


def main(detection: DetectWatermarkOptions, model: ModelOptions, watermark: WatermarkOptions) -> None:
    """Prints what the text's tokens say, as JSON.

    Raises:
        StartupError: there is no key, or the text cannot be read.
    """
    config = watermark.watermark()
    if config is None:
        raise StartupError("--watermark-config is missing: set it as on the server, with the same key.")
    found = detect(_tokens(detection, model), config, detection.p_value_threshold)
    click.echo(json.dumps(dataclasses.asdict(found), indent=2))


def _tokens(detection: DetectWatermarkOptions, model: ModelOptions) -> list[int]:
    path = detection.input_file
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        if detection.token_ids:
            return msgspec.json.decode(data, type=list[int])
        text = data.decode()
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise StartupError(f"--input-file {path}: {error}") from error
    with needed("a text without --token-ids", "tokenizers", "tokenizer"):
        from quire.tokenizer.modes import find_tokenizer
    found: list[int] = find_tokenizer(model).read().tokenizer.encode(text, add_special_tokens=False).ids
    return found
