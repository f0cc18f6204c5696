"""Prompt embeddings as base64 safetensors files, and the refusal of anything else."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from gateway.protocol.completions import CompletionRequest
from gateway.requests.convert import truncate
from gateway.requests.prompt_embeds import parse_safetensors, read_prompt_embeds
from gateway.requests.served_model import ServedModel
from quire.block_hash import block_keys
from quire.errors import ContextTooLong, InvalidRequest
from quire.prompt_embeds import MAX_PROMPT_EMBEDS_BYTES
from quire.sampling import SamplingParameters

MODEL = ServedModel(("m",), "m", 64, 100, 4, 20, SamplingParameters(), (), 8)


def encoded(file: bytes) -> str:
    return base64.b64encode(file).decode()


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype: str = "F32", shape: Any = (1, 8), offsets: Any = (0, 32)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_safetensors_writes_is_read(dtype: torch.dtype) -> None:
    values = torch.randn(11, 8).to(dtype)
    file = save({"any name": values}, metadata={"format": "pt"})
    (prompt,) = read_prompt_embeds([encoded(file)], MODEL, 64, "salt")
    assert prompt.embeds is not None
    assert (prompt.num_tokens, prompt.token_ids) == (11, ())
    assert f"torch.{prompt.embeds.dtype}" == str(dtype)
    assert prompt.embeds.data == values.view(torch.uint8).numpy().tobytes()
    assert prompt.block_keys == tuple(block_keys([0] * 11, 4, "salt", ((0, prompt.embeds.digest),)))
    (other,) = read_prompt_embeds([encoded(save({"x": values + 1}))], MODEL, 64, "salt")
    assert not set(other.block_keys) & set(prompt.block_keys)


def test_some_rows_are_left_by_truncation() -> None:
    values = np.arange(80, dtype=np.float32).reshape(10, 8)
    (prompt,) = read_prompt_embeds([encoded(save({"x": torch.from_numpy(values)}))], MODEL, 0, "")
    for side, kept in (("left", values[-3:]), ("right", values[:3])):
        body = CompletionRequest(truncate_prompt_tokens=3, truncation_side=side)
        cut = truncate(prompt, body, 64)
        assert cut.embeds is not None
        assert cut.embeds.data == kept.tobytes()
        assert cut.block_keys == ()


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"", "header length is invalid"),
        (b"\x80\x02}q\x00.", "header length is invalid"),  # a pickle
        (struct.pack("<Q", 2**64 - 1) + b"{}", "header length is invalid"),
        (file_of({}), "has 0 tensors"),
        (file_of({"a": tensor(), "b": tensor()}, bytes(32)), "has 2 tensors"),
        (file_of([]), "header is malformed"),
        (file_of(b"[" * 60_000), "header is malformed"),
        (file_of(b'{"a":' * 10_000), "header is malformed"),
        (file_of(b"{" + b" " * 70_000 + b"}"), "header length is invalid"),
        (file_of({"a": tensor() | {"shape": "8"}}, bytes(32)), "header is malformed"),
        (file_of({"a": tensor() | {"data_offsets": [0]}}, bytes(32)), "header is malformed"),
        (file_of({"a": tensor("I64")}, bytes(32)), "has the type I64; supported are F32, F16, BF16"),
        (file_of({"a": tensor(shape=[1, 1, 8])}, bytes(32)), "without a batch dimension"),
        (file_of({"a": tensor(shape=[8])}, bytes(32)), r"the shape \[8\]"),
        (file_of({"a": tensor(shape=[-1, -8])}, bytes(32)), r"the shape \[-1, -8\]"),
        (file_of({"a": tensor(shape=[0, 8], offsets=[0, 0])}), r"the shape \[0, 8\]"),
        (file_of({"a": tensor(shape=[2, 8])}, bytes(32)), "do not match its shape"),
        (file_of({"a": tensor(shape=[2**62, 2**62])}, bytes(32)), "do not match its shape"),
        (file_of({"a": tensor(offsets=[8, 40])}, bytes(32)), "do not match its shape"),
        (file_of({"a": tensor()}, bytes(33)), "do not match its shape"),
        (file_of({"a": tensor(shape=[2, 4])}, bytes(32)), "4 values in each row, but the model's hidden size is 8"),
    ],
)
def test_what_is_no_such_file_is_refused(file: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        read_prompt_embeds([encoded(file)], MODEL, 64, "")
    assert caught.value.parameter == "prompt_embeds"


@given(st.binary(max_size=200))
def test_anything_else_is_refused_too(file: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_safetensors(file)


def test_other_refusals() -> None:
    with pytest.raises(InvalidRequest, match="not valid base64"):
        read_prompt_embeds(["not ! base64"], MODEL, 64, "")
    with pytest.raises(InvalidRequest, match="not valid base64"):
        read_prompt_embeds(["ä"], MODEL, 64, "")
    with pytest.raises(InvalidRequest, match="characters"):
        read_prompt_embeds(["A" * (MAX_PROMPT_EMBEDS_BYTES * 2)], MODEL, 64, "")
    with pytest.raises(InvalidRequest, match="--enable-prompt-embeds"):
        read_prompt_embeds([""], ServedModel(("m",), "m", 64, 100, 4, 20, SamplingParameters()), 64, "")
    with pytest.raises(ContextTooLong, match="has 65"):
        read_prompt_embeds([encoded(save({"x": torch.zeros(65, 8)}))], MODEL, 64, "")
