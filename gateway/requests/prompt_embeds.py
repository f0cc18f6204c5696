"""`prompt_embeds`: safetensors files in base64, each with one tensor [tokens, hidden_size]. Nothing is unpickled."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Sequence

import msgspec

from gateway.requests.generation_request import TokenizedPrompt
from gateway.requests.served_model import ServedModel
from quire.block_hash import block_keys
from quire.bounds import check_context_length
from quire.errors import InvalidRequest
from quire.prompt_embeds import DTYPES, MAX_PROMPT_EMBEDS_BYTES, PromptEmbeds, check_taken

_NAME = "prompt_embeds"
_LENGTH = struct.Struct("<Q")  # length of the header in bytes, which precedes it
_MAX_HEADER_BYTES = 64 * 1024
_METADATA = "__metadata__"
_SAFETENSORS_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class _Tensor(msgspec.Struct):
    """One tensor's entry in the header of a safetensors file."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_prompt_embeds(
    files: Sequence[str], model: ServedModel, max_tokens: int, cache_salt: str
) -> list[TokenizedPrompt]:
    """Returns the prompts, with their block keys.

    Args:
        max_tokens: maximum length of a prompt; 0 for no limit.

    Raises:
        InvalidRequest: the model does not take embeddings, or a file is malformed.
        ContextTooLong: a prompt does not fit the model.
    """
    prompts = []
    check_taken(model.prompt_embeds_size)
    for file in files:
        embeds = parse_safetensors(_decoded(file))
        embeds.check(model.prompt_embeds_size)
        if max_tokens:
            check_context_length(embeds.num_tokens, 0, max_tokens, prompt_name=_NAME)
        keys: Sequence[int] = ()
        if model.block_size:
            held = [0] * embeds.num_tokens
            keys = block_keys(held, model.block_size, cache_salt, ((0, embeds.digest),), model.revision)
        prompts.append(TokenizedPrompt((), tuple(keys), embeds))
    return prompts


def _decoded(file: str) -> bytes:
    most = MAX_PROMPT_EMBEDS_BYTES + _MAX_HEADER_BYTES + _LENGTH.size
    if len(file) > most // 3 * 4 + 4:
        raise _error(
            f"has {len(file)} characters, which encode more than the {MAX_PROMPT_EMBEDS_BYTES} bytes allowed for a "
            "prompt"
        )
    try:
        return base64.b64decode(file, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _error(f"is not valid base64 ({error})") from None


def parse_safetensors(file: bytes) -> PromptEmbeds:
    """Returns the single tensor of a safetensors file.

    Raises:
        InvalidRequest: it is not a safetensors file, or its tensor is not a matrix of 16 or 32-bit floats.
    """
    length = _LENGTH.unpack_from(file)[0] if len(file) >= _LENGTH.size else 0
    end = _LENGTH.size + length
    if not 2 <= length <= _MAX_HEADER_BYTES or end > len(file):
        raise _error("is not a safetensors file: its header length is invalid")
    try:
        header = msgspec.json.decode(file[_LENGTH.size : end], type=dict[str, msgspec.Raw])
        tensors = [msgspec.json.decode(raw, type=_Tensor) for name, raw in header.items() if name != _METADATA]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _error("is not a safetensors file: its header is malformed") from None
    if len(tensors) != 1:
        raise _error(f"has {len(tensors)} tensors; it must have one")
    return _embeds(tensors[0], file[end:])


def _embeds(tensor: _Tensor, data: bytes) -> PromptEmbeds:
    if tensor.dtype not in _SAFETENSORS_DTYPES:
        raise _error(f"has the type {tensor.dtype[:20]}; supported are {', '.join(_SAFETENSORS_DTYPES)}")
    if len(tensor.shape) != 2 or min(tensor.shape) < 1:
        shape = ", ".join(str(size)[:20] for size in tensor.shape[:5])
        raise _error(f"has the shape [{shape}]; it must be [tokens, hidden_size], without a batch dimension")
    dtype, (rows, columns) = _SAFETENSORS_DTYPES[tensor.dtype], tensor.shape
    if tensor.data_offsets != (0, len(data)) or rows * columns * DTYPES[dtype] != len(data):
        raise _error(f"has {len(data)} bytes of values, which do not match its shape")
    return PromptEmbeds(dtype, columns, data)


def _error(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"prompt_embeds {what}. Send the result of safetensors.torch.save({{'prompt_embeds': tensor}}) in base64.",
        parameter=_NAME,
    )
