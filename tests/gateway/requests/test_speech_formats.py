"""How each architecture is asked for what is said in a recording."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.answers.transcripts import TextAfterMark, TextInQuotes
from gateway.requests.languages import LANGUAGES, WHISPER_LANGUAGES, language_name
from gateway.requests.speech_formats import FILE_URL, SpeechTask, speech_format
from quire.errors import InvalidRequest

AUDIO = {"type": "audio_url", "audio_url": {"url": FILE_URL}}
FLAMINGO = "AudioFlamingo3ForConditionalGeneration"
GLM = "GlmAsrForConditionalGeneration"
GRANITE = "GraniteSpeechForConditionalGeneration"
MUSIC = "MusicFlamingoForConditionalGeneration"
QWEN2 = "Qwen2AudioForConditionalGeneration"
QWEN3 = "Qwen3ASRForConditionalGeneration"
VOXTRAL = "VoxtralForConditionalGeneration"
LIVE = "VoxtralRealtimeForConditionalGeneration"


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize(
    ("architecture", "task", "words"),
    [
        (GLM, SpeechTask(), "Please transcribe this audio into text"),
        (GLM, SpeechTask(prompt="Write it down"), "Write it down"),
        (GLM, SpeechTask(to_language="en"), "Translate the speech to English."),
        (FLAMINGO, SpeechTask(), "Transcribe the input speech."),
        (MUSIC, SpeechTask(prompt="Write the lyrics."), "Write the lyrics."),
        (FLAMINGO, SpeechTask(to_language="en"), "Translate any foreign text you hear to English."),
        (GRANITE, SpeechTask(), "can you transcribe the speech into a written format?"),
        (GRANITE, SpeechTask(to_language="fr"), "can you translate the speech to French?"),
        (QWEN2, SpeechTask(), "Transcribe the speech."),
        (QWEN2, SpeechTask(to_language="de"), "Translate the speech to German."),
        ("SomeOther", SpeechTask(language="de"), "Transcribe the speech. The language is German."),
        ("SomeOther", SpeechTask(prompt="Listen.", language="de"), "Listen. The language is German."),
        ("SomeOther", SpeechTask("Names: Ann.", "de", "en"),
         "Translate the speech to English. Names: Ann. The language is German."),
    ],
)  # fmt: skip
def test_instructions(architecture: str, task: SpeechTask, words: str) -> None:
    asked = speech_format(architecture).conversation(task)
    is_flamingo = architecture in (FLAMINGO, MUSIC)
    content = [text(words), AUDIO] if is_flamingo else [AUDIO, text(words)]
    assert asked.messages == [{"role": "user", "content": content}]
    assert (asked.continues, asked.parser) == (False, TextInQuotes if is_flamingo else None)


def test_qwen3_asr() -> None:
    user = {"role": "user", "content": [AUDIO]}
    found = speech_format(QWEN3).conversation(SpeechTask())
    assert (found.messages, found.continues, found.parser) == ([user], False, TextAfterMark)
    found = speech_format(QWEN3).conversation(SpeechTask("Quire", "zh"))
    system = {"role": "system", "content": [text("Quire")]}
    begun = {"role": "assistant", "content": [text("language Chinese<asr_text>")]}
    assert (found.messages, found.continues, found.parser) == ([system, user, begun], True, None)
    with pytest.raises(InvalidRequest, match="Qwen3-ASR does not translate") as caught:
        speech_format(QWEN3).conversation(SpeechTask(to_language="en"))
    assert caught.value.parameter == "model"


def test_voxtral() -> None:
    user = {"role": "user", "content": [AUDIO]}
    found = speech_format(VOXTRAL).conversation(SpeechTask())
    assert (found.messages, found.variables) == ([user], {"transcription": ""})
    assert speech_format(VOXTRAL).conversation(SpeechTask(language="DE")).variables == {"transcription": "de"}
    for task, words in (
        (SpeechTask("Names: Ann.", "de"), "Names: Ann. The language is German."),
        (SpeechTask(to_language="en"), "Translate the speech to English."),
    ):
        told = speech_format(VOXTRAL).conversation(task)
        assert (told.messages, told.variables) == ([{"role": "user", "content": [AUDIO, text(words)]}], {})
    with pytest.raises(InvalidRequest, match="language is 'yue'"):
        speech_format(VOXTRAL).conversation(SpeechTask(language="yue"))


@pytest.mark.parametrize(
    ("task", "field"),
    [(SpeechTask("Ann"), "prompt"), (SpeechTask(language="de"), "language"), (SpeechTask(to_language="en"), "to_")],
)
def test_voxtral_realtime_is_told_nothing(task: SpeechTask, field: str) -> None:
    found = speech_format(LIVE).conversation(SpeechTask())
    assert (found.messages, found.variables) == ([{"role": "user", "content": [AUDIO]}], {"transcription": ""})
    with pytest.raises(InvalidRequest, match=f"{field}.* is '.*', but Voxtral Realtime cannot be told anything"):
        speech_format(LIVE).conversation(task)


def test_languages_have_codes() -> None:
    assert [language_name("language", code) for code in ("en", "ZH", "yue")] == ["English", "Chinese", "Cantonese"]
    assert list(LANGUAGES) == sorted(LANGUAGES) and len(LANGUAGES) == 30
    names = [language_name("language", code, WHISPER_LANGUAGES) for code in ("en", "HT", "yue")]
    assert (names, len(set(WHISPER_LANGUAGES.values()))) == (["English", "Haitian Creole", "Cantonese"], 100)
    with pytest.raises(InvalidRequest, match="to_language is 'English'; it must be the code of a language: ar, cs"):
        language_name("to_language", "English")
