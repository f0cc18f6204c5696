"""Keeps converted tokenizers in the user's cache: large vocabularies take seconds of every process that reads them."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from quire.cache_folder import cache_folder
from quire.tokenizer.conversion.source import Converted
from quire.tokenizer.vocabulary_files import VOCABULARIES

logger = logging.getLogger(__name__)

_LEAST_BYTES = 2**20  # smaller vocabularies are converted about as fast as they would be read
_MOST_FILES = 8
_DIGEST_BYTES = 32


def kept(folder: Path, config: Mapping[str, Any], convert: Callable[[], Converted]) -> Converted:
    """Returns a folder's converted tokenizer: as it was kept, or as `convert` makes it.

    Args:
        config: see `convert` in registry.py.
    """
    vocabularies = [path for pattern in VOCABULARIES for path in sorted(folder.glob(pattern))]
    if sum(path.stat().st_size for path in vocabularies) < _LEAST_BYTES:
        return convert()
    file = cache_folder() / "tokenizers" / _name(folder, vocabularies, config)
    if (found := _read(file)) is None:
        found = convert()
        try:
            _write(file, found)
        except OSError as error:
            logger.info("the converted tokenizer cannot be kept in %s: %s", file, error.strerror)
    return found


def _name(folder: Path, vocabularies: list[Path], config: Mapping[str, Any]) -> str:
    """A name that depends on all that a conversion reads, and on its code."""
    digest = hashlib.sha256(msgspec.json.encode(config, order="sorted"))
    code = sorted(Path(__file__).parents[1].rglob("*.py"))
    for path in (*vocabularies, folder / "vocab.json", folder / "config.json", folder / "added_tokens.json", *code):
        digest.update(hashlib.sha256(path.read_bytes() if path.is_file() else b"").digest())
    return digest.hexdigest()[:32]


def _read(file: Path) -> Converted | None:
    """What a file holds; None if it is missing or damaged."""
    try:
        content = file.read_bytes()
        body = content[_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != content[:_DIGEST_BYTES]:
            return None
        with contextlib.suppress(OSError):
            file.touch()  # the files used last are kept
        return msgspec.json.decode(body, type=Converted)
    except (OSError, msgspec.DecodeError):
        return None


def _write(file: Path, converted: Converted) -> None:
    """Writes a file, which appears whole or not at all, and deletes those that were not used for longest."""
    body = msgspec.json.encode(converted)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{uuid.uuid4().hex}.part")
    try:
        part.write_bytes(hashlib.sha256(body).digest() + body)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    for old in sorted(_files(file.parent), reverse=True)[_MOST_FILES:]:
        old[1].unlink(missing_ok=True)


def _files(folder: Path) -> Iterator[tuple[float, Path]]:
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process has just deleted it
            yield path.stat().st_mtime, path
