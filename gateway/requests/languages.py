"""Languages of speech, by the codes that clients send."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quire.errors import InvalidRequest

ENGLISH = "English"
# ISO 639 code → the name that instructions use; those that Qwen3-ASR was trained with.
LANGUAGES: Mapping[str, str] = MappingProxyType({
    "ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": ENGLISH, "es": "Spanish",
    "fa": "Persian", "fi": "Finnish", "fil": "Filipino", "fr": "French", "hi": "Hindi", "hu": "Hungarian",
    "id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "mk": "Macedonian", "ms": "Malay",
    "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "th": "Thai",
    "tr": "Turkish", "vi": "Vietnamese", "yue": "Cantonese", "zh": "Chinese",
})  # fmt: skip


def language_name(field: str, code: str) -> str:
    """Returns the English name of a language.

    Raises:
        InvalidRequest: the code is not known.
    """
    name = LANGUAGES.get(code.lower())
    if name is None:
        raise InvalidRequest(
            f"{field} is {code[:50]!r}; it must be the code of a language: {', '.join(LANGUAGES)}.", parameter=field
        )
    return name
