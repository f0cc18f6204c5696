"""The child process that prepares images and videos (see `child`)."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Any

from quire.media import MediaKind
from tokenizer_svc.child import Answer, Message, run
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.processed import Processed


def make(setup: Message) -> Answer:
    """Returns the function that prepares the media in a message's payload, or reports how prompts mark them.

    The fields of a message are the `kind`, the `sizes` of the files, and the `settings` and `reading` of
    `VideoProcessor.prepare`.
    """
    from tokenizer_svc import film
    from tokenizer_svc.image_processor import ImageProcessor  # imports Transformers

    processor = ImageProcessor(Path(setup.fields["folder"]), setup.fields.get("video_pruning_rate", 0.0))
    film.prepare()

    def facts() -> Message:
        marks: dict[str, Any] = {MediaKind.IMAGE: [processor.placeholder, processor.image_token_id]}
        if (videos := processor.videos) is not None:
            marks[MediaKind.VIDEO] = [videos.placeholder, videos.token_id]
        return Message({"marks": marks, "can_prune": videos is not None and videos.can_prune})

    def prepare(request: Message) -> Processed:
        settings = request.fields["settings"]
        if request.fields["kind"] == MediaKind.IMAGE:
            return processor.prepare(request.payload, settings)
        assert processor.videos is not None
        ends = [*itertools.accumulate(request.fields["sizes"])]
        files = [request.payload[start:end] for start, end in itertools.pairwise([0, *ends])]
        return processor.videos.prepare(files, settings, request.fields["reading"])

    def answer(request: Message) -> Message:
        if not request.fields:
            return facts()
        try:
            found = prepare(request)
        except MediaRejection as error:
            return Message({"error": str(error)[:2000], "parameter": error.parameter})
        fields = {
            "text": found.text, "num_tokens": found.num_tokens, "pixel_scale": found.pixel_scale,
            "pixel_shift": found.pixel_shift,
            "inputs": [(name, each.dtype.name, each.shape, each.nbytes) for name, each in found.inputs.items()],
        }  # fmt: skip
        return Message(fields, b"".join(each.tobytes() for each in found.inputs.values()))

    return answer


if __name__ == "__main__":
    # Transformers imports torch where it is installed, which takes seconds and memory, and is not needed for images. It
    # would advise to install it.
    sys.modules["torch"] = None  # type: ignore[assignment]  # means that it cannot be imported
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    run(make)
