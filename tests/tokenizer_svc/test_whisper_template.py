"""Whisper models, which come without a chat template, render conversations all the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import transformers

from quire.errors import InvalidRequest
from quire.media import filled_up
from quire.options.tokenizer import TokenizerOptions
from quire.rpc.status import from_rpc_error
from quire.tokenizer.files import read_tokenizer_files
from quire.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from tests.support.audio_files import audio_file, sine
from tests.support.audio_processors import CHUNK_SECONDS, save_audio_processor
from tests.support.gateway_stack import running_tokenizer, save_tokenizer
from tests.support.waiting import WAIT_SECONDS
from tokenizer_svc.main import choose_templates
from tokenizer_svc.whisper_template import whisper_templates

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILE = audio_file(sine(1.5))
AUDIO = {"type": "audio"}
PROMPT = "<|startofprev|> Hello<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("whisper")
    save_audio_processor(found, "whisper")
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["auto", "string", "openai"])
async def stub(folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[tokenizer_pb2_grpc.TokenizerServiceStub]:
    options = TokenizerOptions(chat_template_content_format=request.param)
    async with (
        running_tokenizer(folder, tokenizer_options=options) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        yield tokenizer_pb2_grpc.TokenizerServiceStub(channel)


async def rendered(stub: Any, *contents: Any, prompt: bool = False) -> tokenizer_pb2.RenderChatResponse:
    """Of messages with the contents, and a file for each audio part."""
    messages = [{"role": "user", "content": content} for content in contents]
    audios = [FILE] * sum(part == AUDIO for content in contents if isinstance(content, list) for part in content)
    request = tokenizer_pb2.RenderChatRequest(
        messages_json=json.dumps(messages).encode(), audios=audios, add_generation_prompt=prompt
    )
    try:
        return await stub.RenderChat(request, timeout=WAIT_SECONDS)  # type: ignore[no-any-return]
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from None


async def test_a_recording_and_how_to_write_it_down(stub: Any, folder: Path) -> None:
    answer = await rendered(stub, [AUDIO], PROMPT)
    assert answer.text == f"<|startoflm|>{PROMPT}"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    one, count = tokenizer.convert_tokens_to_ids("<|startoflm|>"), filled_up(50 * CHUNK_SECONDS)
    named = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    assert list(answer.sequence.token_ids) == [
        *[one] * count, tokenizer.convert_tokens_to_ids("<|startofprev|>"),
        *tokenizer.encode(" Hello", add_special_tokens=False), *tokenizer.convert_tokens_to_ids(named),
    ]  # fmt: skip
    assert [(image.offset, image.num_tokens) for image in answer.images] == [(0, count)]
    assert answer.audio_seconds == 1.5
    assert (await rendered(stub, [AUDIO], prompt=True)).text == "<|startoflm|><|startoftranscript|>"


async def test_texts_are_kept(stub: Any) -> None:
    assert (await rendered(stub, " \n a ", [text("\n b\n")], prompt=True)).text == " \n a \n b\n<|startoftranscript|>"
    times = await rendered(stub, "<|0.00|> a<|1.98|>")
    assert len(times.sequence.token_ids) == 4
    with pytest.raises(InvalidRequest, match="has written 2 audio placeholders"):
        await rendered(stub, [AUDIO], "<|startoflm|>")


async def test_a_template_of_ones_own(folder: Path, tmp_path: Path) -> None:
    files = read_tokenizer_files(folder)
    assert choose_templates(files, TokenizerOptions(chat_template="{{ 1 }}")) == {"default": "{{ 1 }}"}
    save_audio_processor(tmp_path, "whisper")
    (tmp_path / "chat_template.jinja").write_text("own")
    assert choose_templates(read_tokenizer_files(tmp_path), TokenizerOptions()) == {"default": "own"}


async def test_other_models(tmp_path: Path) -> None:
    assert whisper_templates(None) == whisper_templates(tmp_path) == {}
    save_tokenizer(tmp_path)
    for fields in ('{"processor_class": "GlmAsrProcessor"}', '{"processor_class": ["WhisperProcessor"]}', "{"):
        (tmp_path / "processor_config.json").write_text(fields)
        assert whisper_templates(tmp_path) == {}
