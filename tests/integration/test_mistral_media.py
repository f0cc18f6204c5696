"""Whole stacks serve models that see or hear from Mistral's own files alone, without further flags."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec.structs import replace
from websockets.sync.client import ClientConnection, connect

from quire.media import MediaKind
from quire.pcm import wav_file
from quire.tokenizer.tekken import read_tekken
from tests.support.audio_files import RATE, audio_file, sine
from tests.support.mistral_media import as_mistrals, make_mistral_model, mistral_request, reference_answer
from tests.support.run_engine import GREEDY
from tests.support.tekken import IMAGES, write_tekken_with_settings
from tests.support.tiny_stack import serving_tiny
from tests.support.vision_models import png_bytes, random_image

pytestmark = pytest.mark.slow

ANSWER = 12
RECORDING = audio_file(sine(3.1), "wavf")
PICTURE = png_bytes(random_image(50, 40, 1))


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def expected(folder: Path, family: str, parts: list[Any], file: bytes, **variables: Any) -> list[int]:
    kind = MediaKind.AUDIO if family == "voxtral" else MediaKind.IMAGE
    sampling = replace(GREEDY, max_tokens=ANSWER)
    request = mistral_request(folder, [{"role": "user", "content": parts}], [file], sampling, kind, **variables)
    return reference_answer(folder, family, request, ANSWER)


def asked(client: openai.OpenAI, *parts: Any, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": list(parts)}]
    answer = client.chat.completions.create(
        model="tiny", messages=messages, temperature=0, max_tokens=ANSWER, extra_body={"return_token_ids": True},
        **fields,
    )  # fmt: skip
    return answer.choices[0].model_extra["token_ids"]  # type: ignore[index]


def test_images(tmp_path: Path) -> None:
    original = make_mistral_model(tmp_path / "original", "mistral4")
    served = as_mistrals(original, tmp_path / "mistral", "mistral4")
    for folder in (original, served):
        write_tekken_with_settings(folder, ["none", "high"], image=IMAGES)
    parts = [text("What is"), {"type": "image"}, text("this [IMG]?")]
    efforts = {"none": openai.omit, "high": "high"}
    wanted = {effort: expected(original, "mistral4", parts, PICTURE, reasoning_effort=effort) for effort in efforts}
    assert wanted["none"] != wanted["high"]
    url = f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"
    parts[1] = {"type": "image_url", "image_url": {"url": url}}
    # The default effort, medium, is not refused: it was not asked for, even where the operator has thinking turned on.
    with serving_tiny(served, "--default-chat-template-kwargs", '{"enable_thinking": true}') as client:
        for effort, given in [*efforts.items()] * 2:
            assert asked(client, *parts, reasoning_effort=given) == wanted[effort]
        with pytest.raises(openai.BadRequestError, match=r"should be one of .*none.*high.*, got low"):
            asked(client, *parts, reasoning_effort="low")
        with pytest.raises(openai.BadRequestError, match="this model reads text and images only"):
            asked(client, {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}})


def test_audio(tmp_path: Path) -> None:
    original = make_mistral_model(tmp_path / "original", "voxtral")
    wanted = expected(original, "voxtral", [{"type": "audio"}, text("What is it?")], RECORDING)
    tokenizer = read_tekken(original).tokenizer
    spoken = {
        language: tokenizer.decode(
            expected(original, "voxtral", [{"type": "audio"}], RECORDING, transcription=language)
        )
        for language in ("", "de")
    }
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(RECORDING).decode(), "format": "wav"}}
    with serving_tiny(as_mistrals(original, tmp_path / "mistral", "voxtral")) as client:
        assert asked(client, part, text("What is it?")) == wanted
        create: Any = client.audio.transcriptions.create
        for language, words in spoken.items():
            form = {"language": language} if language else {}
            answer = create(
                file=("a.wav", RECORDING), model="tiny", extra_body={"max_completion_tokens": str(ANSWER)}, **form
            )
            assert answer.text == words.strip()
        assert spoken[""] != spoken["de"]
        samples = (sine(3.1) * 32767).astype("<i2").tobytes()
        written = create(
            file=("a.wav", wav_file(samples, RATE)), model="tiny", extra_body={"max_completion_tokens": str(ANSWER)}
        ).text
        assert live_transcript(client, samples).startswith(written)


def test_live_audio(tmp_path: Path) -> None:
    """A model that writes while it hears writes the same as when the recording is over, and does not wait for that."""
    folder = make_mistral_model(tmp_path / "model", "voxtral_realtime")
    samples = (sine(3.1) * 32767).astype("<i2").tobytes()
    with serving_tiny(folder) as client:
        create: Any = client.audio.transcriptions.create
        written = create(file=("a.wav", wav_file(samples, RATE)), model="tiny").text
        assert written and live_transcript(client, samples) == written
        url = str(client.base_url).replace("http", "ws", 1) + "realtime?model=tiny"
        with connect(url, proxy=None) as socket:
            assert json.loads(socket.recv(30))["type"] == "session.created"
            for _ in range(2):
                said = ""
                for start in range(0, len(samples), 3000):
                    append(socket, samples[start : start + 3000])
                while len(said) < len(written) * 2 // 3:
                    event = json.loads(socket.recv(30))
                    assert event["type"] == "transcription.delta", event
                    said += event["delta"]
                socket.send(json.dumps({"type": "input_audio_buffer.commit", "final": True}))
                while (event := json.loads(socket.recv(30)))["type"] == "transcription.delta":
                    said += event["delta"]
                assert event["type"] == "transcription.done" and event["text"] == said == written
                assert event["usage"]["prompt_tokens"] == 6 and event["usage"]["completion_tokens"] > 39
            append(socket, samples)  # and leaves
            json.loads(socket.recv(30))
        assert (
            live_transcript(client, samples[:64])
            == create(file=("a.wav", wav_file(samples[:64], RATE)), model="tiny").text
        )


def append(socket: ClientConnection, samples: bytes) -> None:
    event = {"type": "input_audio_buffer.append", "audio": base64.b64encode(samples).decode()}
    socket.send(json.dumps(event))


def live_transcript(client: openai.OpenAI, samples: bytes) -> str:
    url = str(client.base_url).replace("http", "ws", 1) + "realtime?model=tiny"
    with connect(url, proxy=None) as socket:
        append(socket, samples)
        socket.send(json.dumps({"type": "input_audio_buffer.commit", "final": True}))
        events = [json.loads(socket.recv())]
        while events[-1]["type"] in ("session.created", "transcription.delta"):
            events.append(json.loads(socket.recv()))
    assert events[-1]["type"] == "transcription.done"
    assert events[-1]["text"] == "".join(event.get("delta", "") for event in events)
    return str(events[-1]["text"])
