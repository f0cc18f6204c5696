"""The child process that prepares images (see `child`)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tokenizer_svc.child import Answer, Message, run
from tokenizer_svc.media_rejection import MediaRejection


def make(setup: Message) -> Answer:
    """Returns the function that prepares an image, the payload of a message, or reports how prompts mark images."""
    from tokenizer_svc.image_processor import ImageProcessor  # imports Transformers

    processor = ImageProcessor(Path(setup.fields["folder"]))

    def answer(request: Message) -> Message:
        if not request.payload:
            return Message({"placeholder": processor.placeholder, "image_token_id": processor.image_token_id})
        try:
            found = processor.prepare(request.payload, request.fields["settings"])
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
