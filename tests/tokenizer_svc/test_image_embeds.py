"""Tensors of images that come as embeddings: what is read, and what is refused."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from quire.images import EMBEDS, GRID
from tests.support.vision_models import make_vision_model
from tests.support.vision_models.embeddings import saved
from tokenizer_svc.image_embeds import prepare_embeds
from tokenizer_svc.image_processor import ImageProcessor
from tokenizer_svc.media_rejection import MediaRejection
from tokenizer_svc.processed import Processed
from tokenizer_svc.torch_file import read_tensor

ROWS = torch.arange(12.0).reshape(3, 4)
SAMPLE = Processed("<s><i><i></s>", 2, {}, (), ())


@pytest.mark.parametrize(
    "tensor",
    [
        ROWS, ROWS.half(), ROWS.bfloat16() / 3, torch.nn.Parameter(ROWS), torch.stack([ROWS, -ROWS])[1:], ROWS[:1].T.T,
        torch.tensor([[1, 4, 6]]), torch.tensor([1, 4, 2**40]), torch.tensor([1, 4, 6], dtype=torch.int32),
    ],
)  # fmt: skip
def test_what_torch_saves_is_read(tensor: torch.Tensor) -> None:
    wanted = tensor.detach().to(torch.float32 if tensor.is_floating_point() else torch.int64).numpy()
    found = read_tensor(saved(tensor), "x")
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert np.array_equal(found, wanted)


class _Evil:
    def __reduce__(self) -> object:
        return print, ("evil",)


def archive(pickled: bytes, values: bytes = b"", compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as written:
        written.writestr("archive/data.pkl", pickled)
        written.writestr("archive/data/0", values)
    return file.getvalue()


def pickle_of(tensor: torch.Tensor) -> bytes:
    with zipfile.ZipFile(io.BytesIO(saved(tensor))) as written:
        return written.read("archive/data.pkl")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"", "not a tensor as torch.save writes it"),
        (saved(ROWS)[:-100], "not a tensor as torch.save"),
        (saved({"a": ROWS}), "is not a single tensor"),
        (saved([ROWS]), "is not a single tensor"),
        (saved(ROWS.double()), "has values of torch DoubleStorage"),
        (saved(ROWS.T), "do not follow each other"),
        (saved(ROWS[:0]), "an empty dimension"),
        (saved(torch.tensor(1.0)), "not a tensor as torch.save"),
        (saved(ROWS.to_sparse()), "is not a single tensor"),
        (archive(pickle.dumps(_Evil(), 2)), "is not a single tensor"),
        (archive(pickle.dumps(_Evil())), "is not a single tensor"),
        (archive(pickle_of(ROWS), bytes(44)), "not a tensor as torch.save"),  # too few values
        (archive(pickle_of(ROWS), bytes(48), zipfile.ZIP_DEFLATED), "not a tensor as torch.save"),
        (archive(pickle_of(ROWS).replace(b"storage", b"sturage"), bytes(48)), "not a tensor as torch.save"),
        (archive(b"\x80\x02" + b")" * 70_000 + b"."), "not a tensor as torch.save"),
        # A tuple of tuples of … that would take forever to write or to compare.
        (archive(b"\x80\x02)" + b"q\x01h\x01\x86" * 99 + b"."), "is not a single tensor"),
    ],
)
def test_anything_else_is_refused(file: bytes, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MediaRejection) as caught:
        read_tensor(file, "image_embeds")
    assert str(caught.value).startswith("image_embeds ")
    assert words in str(caught.value)
    assert not capsys.readouterr().out


def test_text_has_a_token_for_each_row() -> None:
    for tensor in (ROWS, ROWS[None]):
        found = prepare_embeds({EMBEDS: saved(tensor), GRID: saved(torch.tensor([1, 2, 6]))}, SAMPLE, "<i>")
        assert (found.text, found.num_tokens) == ("<s><i><i><i></s>", 3)
        assert np.array_equal(found.inputs[EMBEDS], ROWS.numpy())
        assert found.inputs[GRID].tolist() == [[1, 2, 6]]


@pytest.mark.parametrize(
    ("embeds", "grid", "words"),
    [
        (torch.stack([ROWS, ROWS]), None, r"float32 \[2, 3, 4\]; it must be \[tokens, hidden_size\]"),
        (ROWS[0], None, r"float32 \[4\]"),
        (ROWS.long(), None, r"int64 \[3, 4\]"),
        (ROWS, torch.tensor([2, 2, 6]), "1, and the rows and columns"),
        (ROWS, torch.tensor([[1, 2, 6], [1, 2, 6]]), r"int64 \[2, 3\]"),
        (ROWS, torch.tensor([1.0, 2, 6]), r"float32 \[3\]"),
    ],
)
def test_tensors_of_other_shapes(embeds: torch.Tensor, grid: torch.Tensor | None, words: str) -> None:
    tensors = {EMBEDS: saved(embeds)} | ({} if grid is None else {GRID: saved(grid)})
    with pytest.raises(MediaRejection, match=words):
        prepare_embeds(tensors, SAMPLE, "<i>")


def test_models_with_tokens_between_embeddings(tmp_path: Path) -> None:
    processor = ImageProcessor(make_vision_model(tmp_path, "idefics3"))
    with pytest.raises(MediaRejection, match="other tokens between the embeddings"):
        prepare_embeds({EMBEDS: saved(ROWS)}, processor.sample, processor.image_token)
