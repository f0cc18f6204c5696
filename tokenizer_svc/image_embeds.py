"""Images that come as embeddings: read, and given their text in the prompt."""

from __future__ import annotations

from collections.abc import Mapping

from quire.images import EMBEDS, GRID
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.processed import Processed
from tokenizer_svc.torch_file import read_tensor


def prepare_embeds(tensors: Mapping[str, bytes], sample: Processed, token: str) -> Processed:
    """
    Args:
        tensors: files of torch.save by their names: the embeddings, and maybe the grid that they are in.
        sample: some image as the model's processor prepares it, whose text shows what is around embeddings.
        token: stands for an embedding in prompts.

    Raises:
        MediaRejection: a file is malformed, a tensor has another shape or dtype, or the model's prompts have other
            tokens between embeddings.
    """
    before, _, after = sample.text.partition(token * sample.num_tokens)
    if sample.text != f"{before}{token * sample.num_tokens}{after}" or sample.number_marks:
        raise MediaRejection(
            f"{EMBEDS}: prompts of this model have other tokens between the embeddings of an image, or numbers of "
            "images, and tensors do not tell which. Send the image."
        )
    read = {name: read_tensor(file, name) for name, file in tensors.items()}
    embeds = read[EMBEDS]
    if embeds.ndim == 3 and len(embeds) == 1:
        embeds = embeds[0]
    if embeds.ndim != 2 or embeds.dtype.kind != "f":
        raise MediaRejection(
            f"{EMBEDS} is {embeds.dtype} {[*embeds.shape]}; it must be [tokens, hidden_size] or [1, tokens, "
            "hidden_size] of float32, float16 or bfloat16. Send each image as a part of its own."
        )
    inputs = {EMBEDS: embeds}
    if (grid := read.get(GRID)) is not None:
        if grid.size != 3 or grid.dtype.kind != "i" or grid.flat[0] != 1:
            raise MediaRejection(
                f"{GRID} is {grid.dtype} {[*grid.shape]}; it must be [1, 3] or [3] of integers: 1, and the rows and "
                "columns of patches."
            )
        inputs[GRID] = grid.reshape(1, 3)
    return Processed(f"{before}{token * len(embeds)}{after}", len(embeds), inputs, (), ())
