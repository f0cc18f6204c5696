"""How each model for speech is asked, as far as that depends on its vocabulary."""

from __future__ import annotations

from gateway.requests.languages import WHISPER_LANGUAGES
from gateway.requests.served_model import ServedModel
from gateway.requests.speech_formats import SpeechFormat, speech_format
from gateway.requests.whisper import ARCHITECTURE, Whisper, language_token
from gateway.services.tokenizer import Tokenizer

# Of every Whisper model of English only; the others have one token more, or two. Its tokenizer has tokens for languages
# nevertheless.
_ENGLISH_VOCAB_SIZE = 51864


class SpeechFormats:
    """Finds out once what the vocabulary of a model has."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._whispers: dict[str, Whisper] = {}  # by name of the model

    async def of(self, model: ServedModel) -> SpeechFormat:
        """Returns the form in which the model is asked.

        Raises:
            QuireError: the tokenizer service failed.
        """
        if model.architecture != ARCHITECTURE:
            return speech_format(model.architecture)
        if model.vocab_size == _ENGLISH_VOCAB_SIZE:
            return Whisper({})
        if model.main_name not in self._whispers:
            self._whispers[model.main_name] = await self._whisper()
        return self._whispers[model.main_name]

    async def _whisper(self) -> Whisper:
        encoded = await self._tokenizer.encode([language_token(code) for code in WHISPER_LANGUAGES], False)
        found = dict(zip(WHISPER_LANGUAGES, (each.token_ids for each in encoded), strict=True))
        return Whisper({code: token_ids[0] for code, token_ids in found.items() if len(token_ids) == 1})
