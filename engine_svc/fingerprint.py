"""Computes a worker's fingerprint: workers with equal fingerprints generate the same tokens.

It covers everything that affects the rounding of a logit except the batch. A sequence may move between workers with the
same fingerprint; with another one, its continuation might differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import quire
from engine_svc.config_formats.registry import find_model_config
from engine_svc.loader.formats.base import LoadFormat
from engine_svc.loader.formats.registry import create_format
from engine_svc.native.build import library
from engine_svc.native.instructions import listed
from engine_svc.native.levels import LEVELS
from engine_svc.plan import KvCacheSpec
from quire.errors import StartupError
from quire.options.base import values_of
from quire.options.engine import EngineOptions

_LENGTH = 16  # hexadecimal digits
# Pieces read from each weight file, spread evenly from its first byte to its last: a megabyte out of many gigabytes.
_PIECES = 16
_PIECE_BYTES = 64 * 1024
_TRITON_KERNELS = Path(__file__).parent / "kernels"


class Fingerprints(NamedTuple):
    """Those of a worker, with the names that they have in ModelInfo."""

    fingerprint: str
    encoder_fingerprint: str


def fingerprint(
    folder: Path, options: EngineOptions, spec: KvCacheSpec, eos_token_ids: Collection[int], weight_version: str = ""
) -> str:
    """Computes the fingerprint, 16 hexadecimal digits.

    Args:
        folder: folder of the model; missing files count as empty.
        spec: spec of the loaded model, with the values chosen for `auto` options.
        eos_token_ids: tokens that end the output.
        weight_version: name of weights that were loaded at runtime: not all of their bytes are read, and an update may
            have changed few of them.
    """
    weights = create_format(folder, options.load)
    speculative = options.speculative.chosen()
    facts = {
        "quire": quire.__version__, "torch": version("torch"), "kernels": _kernels(spec),
        "architecture": spec.architecture, "instructions": _instructions(spec), "eos_token_ids": sorted(eos_token_ids),
        "typical_acceptance": speculative and speculative.typical_acceptance,
        "seed": (options.generation.seed or 0) if weights.is_random else None,
        "image_encoder": version("transformers") if _encodes(spec) else None, **_options(options, spec),
        **({"weight_version": weight_version} if weight_version else {}),
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(model_digest(folder, options))
    return digest.hexdigest()[:_LENGTH]


def encoder_fingerprint(folder: Path, options: EngineOptions, spec: KvCacheSpec, weight_version: str = "") -> str:
    """Computes the fingerprint of a model's encoder, 16 hexadecimal digits; empty if it has none.

    Workers with equal ones encode an image to the same embeddings, so that these may come from one or the other.

    Args:
        folder, spec, weight_version: see `fingerprint`.
    """
    if not _encodes(spec):
        return ""
    facts = {
        "quire": quire.__version__, "torch": version("torch"), "transformers": version("transformers"),
        "dtype": spec.dtype, "device": spec.device, "instructions": sorted(listed()) if spec.device == "cpu" else [],
        "seed": (options.generation.seed or 0) if create_format(folder, options.load).is_random else None,
        "weight_version": weight_version,
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(model_digest(folder, options))
    return digest.hexdigest()[:_LENGTH]


def fingerprints(
    folder: Path, options: EngineOptions, spec: KvCacheSpec, eos_token_ids: Collection[int], weight_version: str = ""
) -> Fingerprints:
    """Both; see `fingerprint`."""
    return Fingerprints(
        fingerprint(folder, options, spec, eos_token_ids, weight_version),
        encoder_fingerprint(folder, options, spec, weight_version),
    )


def model_digest(folder: Path, options: EngineOptions) -> bytes:
    """A digest of a model's configuration and of some of its weights, 32 bytes; missing files count as empty."""
    digest = hashlib.sha256(json.dumps(_config(folder, options), sort_keys=True).encode())
    for file in _files(create_format(folder, options.load)):
        digest.update(f"{file.name} {file.stat().st_size} ".encode())
        for piece in _pieces(file):
            digest.update(piece)
    return digest.digest()


def _options(options: EngineOptions, spec: KvCacheSpec) -> dict[str, Any]:
    """The options that affect the output. Values in the spec take precedence, since they resolve `auto`."""
    return {
        field.name: _sealed(value) if field.metadata["secret"] else getattr(spec, field.name, value)
        for field, value in values_of(options)
        if field.metadata["affects_output"]
    }


def _sealed(value: Any) -> str:
    """Stands for a secret value; fingerprints are shown, so trying out values must take long."""
    return (
        hashlib.scrypt(json.dumps(value, sort_keys=True).encode(), salt=b"quire", n=2**14, r=8, p=1).hex()
        if value
        else ""
    )


def _config(folder: Path, options: EngineOptions) -> dict[str, Any]:
    try:
        return find_model_config(folder, options.form)
    except StartupError:
        return {}


def _files(weights: LoadFormat) -> Sequence[Path]:
    try:
        return weights.files()
    except StartupError:  # some are missing
        return ()


def _pieces(file: Path) -> Iterator[bytes]:
    last = max(0, file.stat().st_size - _PIECE_BYTES)
    with file.open("rb") as opened:
        for index in range(_PIECES):
            opened.seek(last * index // (_PIECES - 1))
            yield opened.read(_PIECE_BYTES)


def _encodes(spec: KvCacheSpec) -> bool:
    """Whether it has an encoder of images or audio."""
    return spec.accepts_images or spec.accepts_videos or spec.accepts_audio


def _instructions(spec: KvCacheSpec) -> list[str]:
    """Instruction sets of this machine's processor, by which torch chooses its operators.

    Empty on a GPU, and in batch-invariant mode, where our own kernels do all the work, except for images: those of a
    level are the same on every processor.
    """
    ours_alone = spec.batch_invariant and not _encodes(spec)
    return [] if spec.device != "cpu" or ours_alone else sorted(listed())


def _kernels(spec: KvCacheSpec) -> str:
    """Hash of our kernels, so that no change needs a version bump: CPU kernels as compiled, GPU kernels as source."""
    if spec.cpu_kernels in LEVELS:
        files = [library(spec.cpu_kernels)]
    else:
        files = sorted(_TRITON_KERNELS.glob("*.py")) if spec.device != "cpu" else []
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()
