"""`--load-format tensorizer`: one file of CoreWeave's tensorizer, in the model's folder, on a server or in S3."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from engine_svc.loader.formats.base import CheckpointFormat
from quire.errors import StartupError
from quire.extras import needed

if TYPE_CHECKING:
    from engine_svc.layers.parameter import TensorSlice


class Extra(msgspec.Struct):
    """The settings of --model-loader-extra-config."""

    tensorizer_uri: str = "model.tensors"  # a file of the folder, a path, or http(s):// or s3://
    num_readers: int | None = None
    verify_hash: bool = False


class Tensorizer(CheckpointFormat):
    """Tensors have their names in Hugging Face's layout, as the file was written from such a model."""

    patterns: ClassVar[Sequence[str]] = ("*.tensors",)
    extra_config: ClassVar[type[msgspec.Struct]] = Extra

    def files(self) -> Sequence[Path]:
        """The file; empty if it is not local."""
        if "://" in self.extra.tensorizer_uri:
            return ()
        file = self.folder / self.extra.tensorizer_uri
        if not file.is_file():
            raise StartupError(f"{file} does not exist. Set tensorizer_uri in --model-loader-extra-config to the file.")
        return (file,)

    def names(self) -> Mapping[str, Path]:
        """See TensorSource.names."""
        place = Path(next(iter(self.files()), Path(self.extra.tensorizer_uri)))
        with self._opened() as opened:
            return dict.fromkeys(opened.keys(), place)

    def tensors(self) -> Iterator[tuple[str, TensorSlice]]:
        """See TensorSource.tensors."""
        from engine_svc.quantization.source import HeldTensor

        with self._opened() as opened:
            for name in opened:
                yield name, HeldTensor(opened[name].data)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Opens the file.

        Raises:
            StartupError: the package is not installed, or the file cannot be read.
        """
        with needed("--load-format tensorizer", "tensorizer", "tensorizer"):
            from tensorizer import TensorDeserializer, stream_io
        place = str(next(iter(self.files()), self.extra.tensorizer_uri))
        try:
            with (
                stream_io.open_stream(
                    place, "rb", os.environ.get("S3_ACCESS_KEY_ID"), os.environ.get("S3_SECRET_ACCESS_KEY"),
                    os.environ.get("S3_ENDPOINT_URL"),
                ) as stream,
                TensorDeserializer(
                    stream, device="cpu", lazy_load=True, num_readers=self.extra.num_readers,
                    verify_hash=self.extra.verify_hash,
                ) as opened,
            ):  # fmt: skip
                yield opened
        except (OSError, ValueError, RuntimeError) as error:
            raise StartupError(f"{place} cannot be read as a tensorizer file: {error}") from error
