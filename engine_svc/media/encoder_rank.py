"""The compute side of a worker that encodes images, videos and audio for other workers, and nothing else."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch

from engine_svc.loader.encoder import LoadedEncoder, load_encoder_alone
from engine_svc.media.packing import pack
from engine_svc.media.unfit import UnfitImage
from engine_svc.plan import EncodedRows
from engine_svc.pooling_plan import EncodingPlan, EncodingResult
from engine_svc.runner.base_rank import BaseRank
from engine_svc.runner.threads import bind_threads
from quire.images import Image
from quire.options.engine import EngineOptions

logger = logging.getLogger(__name__)


class EncoderRunner:
    """Encodes one image after another, and keeps the last results in host memory."""

    def __init__(self, folder: Path, options: EngineOptions, device: torch.device) -> None:
        """
        Raises:
            StartupError: the model has no encoder, or it cannot be loaded.
        """
        bind_threads(options.kernels, device, 0, 1)
        self.loaded: LoadedEncoder = load_encoder_alone(folder, options, device)
        self._most_bytes = options.images.encoding().ec_buffer_size
        self._kept: OrderedDict[bytes, EncodedRows] = OrderedDict()  # by digest; the last used at the end
        self._kept_bytes = 0

    def run(self, plan: EncodingPlan) -> EncodingResult:
        """Encodes the images of a step that are not kept."""
        start, encoded = time.monotonic(), 0
        outputs: list[EncodedRows | str] = []
        for each in plan.sequences:
            if (rows := self._kept.get(each.image.digest)) is not None:
                self._kept.move_to_end(each.image.digest)
                outputs.append(rows)
                continue
            outputs.append(found := self._encode(each.image))
            if not isinstance(found, str):
                encoded += 1
                self._keep(each.image.digest, found)
        milliseconds = (time.monotonic() - start) * 1000
        return EncodingResult(outputs, milliseconds, milliseconds, encoded)

    def _encode(self, image: Image) -> EncodedRows | str:
        """The embeddings, or why there are none."""
        try:
            return pack(self.loaded.encoder.encode(image))
        except UnfitImage as error:
            return str(error)
        except Exception as error:  # whatever an encoder raises about inputs that it was not made for
            logger.exception("an image cannot be encoded")
            return type(error).__name__

    def _keep(self, digest: bytes, rows: EncodedRows) -> None:
        self._kept[digest] = rows
        self._kept_bytes += len(rows.data)
        while self._kept_bytes > self._most_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest.data)

    def release_caches(self) -> None:
        """Forgets what has been encoded."""
        self._kept.clear()
        self._kept_bytes = 0

    def close(self) -> None:
        """Does nothing: there is no background work."""


class EncoderRank(BaseRank[EncoderRunner]):
    """The rank of a worker that only encodes."""

    def __init__(self, make: Callable[[], EncoderRunner], device: torch.device) -> None:
        """
        Args:
            make: loads the encoder.

        Raises: what `make` raises.
        """
        super().__init__(lambda *_: make(), lambda _: None, device)

    def run(self, plan: EncodingPlan) -> EncodingResult:
        """See EncoderRunner.run."""
        self._profiler.begin_step()
        with self._profiler.part("compute"):
            return self.runner.run(plan)

    def reset_encoder_cache(self) -> None:
        """Forgets what has been encoded. While the model sleeps, nothing is kept."""
        if self._model.loaded is not None:
            self._model.loaded.release_caches()
