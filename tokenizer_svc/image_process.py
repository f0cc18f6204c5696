"""The child process that prepares images (see `child`)."""

from __future__ import annotations

from pathlib import Path

from tokenizer_svc.child import Answer, Message, run
from tokenizer_svc.image_processor import ImageProcessor, ImageRejection


def make(setup: Message) -> Answer:
    """Returns the function that prepares an image, the payload of a message, or reports how prompts mark images."""
    processor = ImageProcessor(Path(setup.fields["folder"]))

    def answer(request: Message) -> Message:
        if not request.payload:
            return Message({"placeholder": processor.placeholder, "image_token_id": processor.image_token_id})
        try:
            found = processor.prepare(request.payload, request.fields["settings"])
        except ImageRejection as error:
            return Message({"error": str(error)[:2000], "parameter": error.parameter})
        fields = {
            "text": found.text, "num_tokens": found.num_tokens, "pixel_scale": found.pixel_scale,
            "pixel_shift": found.pixel_shift,
            "inputs": [(name, each.dtype.name, each.shape, each.nbytes) for name, each in found.inputs.items()],
        }  # fmt: skip
        return Message(fields, b"".join(each.tobytes() for each in found.inputs.values()))

    return answer


if __name__ == "__main__":
    run(make)
