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
# Those that Whisper was trained with, in its order; it has a token for each.
WHISPER_LANGUAGES: Mapping[str, str] = MappingProxyType({
    "en": ENGLISH, "zh": "Chinese", "de": "German", "es": "Spanish", "ru": "Russian", "ko": "Korean", "fr": "French",
    "ja": "Japanese", "pt": "Portuguese", "tr": "Turkish", "pl": "Polish", "ca": "Catalan", "nl": "Dutch",
    "ar": "Arabic", "sv": "Swedish", "it": "Italian", "id": "Indonesian", "hi": "Hindi", "fi": "Finnish",
    "vi": "Vietnamese", "he": "Hebrew", "uk": "Ukrainian", "el": "Greek", "ms": "Malay", "cs": "Czech",
    "ro": "Romanian", "da": "Danish", "hu": "Hungarian", "ta": "Tamil", "no": "Norwegian", "th": "Thai", "ur": "Urdu",
    "hr": "Croatian", "bg": "Bulgarian", "lt": "Lithuanian", "la": "Latin", "mi": "Maori", "ml": "Malayalam",
    "cy": "Welsh", "sk": "Slovak", "te": "Telugu", "fa": "Persian", "lv": "Latvian", "bn": "Bengali", "sr": "Serbian",
    "az": "Azerbaijani", "sl": "Slovenian", "kn": "Kannada", "et": "Estonian", "mk": "Macedonian", "br": "Breton",
    "eu": "Basque", "is": "Icelandic", "hy": "Armenian", "ne": "Nepali", "mn": "Mongolian", "bs": "Bosnian",
    "kk": "Kazakh", "sq": "Albanian", "sw": "Swahili", "gl": "Galician", "mr": "Marathi", "pa": "Punjabi",
    "si": "Sinhala", "km": "Khmer", "sn": "Shona", "yo": "Yoruba", "so": "Somali", "af": "Afrikaans", "oc": "Occitan",
    "ka": "Georgian", "be": "Belarusian", "tg": "Tajik", "sd": "Sindhi", "gu": "Gujarati", "am": "Amharic",
    "yi": "Yiddish", "lo": "Lao", "uz": "Uzbek", "fo": "Faroese", "ht": "Haitian Creole", "ps": "Pashto",
    "tk": "Turkmen", "nn": "Nynorsk", "mt": "Maltese", "sa": "Sanskrit", "lb": "Luxembourgish", "my": "Myanmar",
    "bo": "Tibetan", "tl": "Tagalog", "mg": "Malagasy", "as": "Assamese", "tt": "Tatar", "haw": "Hawaiian",
    "ln": "Lingala", "ha": "Hausa", "ba": "Bashkir", "jw": "Javanese", "su": "Sundanese", "yue": "Cantonese",
})  # fmt: skip
# Voxtral takes codes of ISO 639-1, which knows Javanese by another one.
VOXTRAL_LANGUAGES: Mapping[str, str] = MappingProxyType({
    code: name for code, name in WHISPER_LANGUAGES.items() if len(code) == 2 and code != "jw"
})  # fmt: skip


def language_name(field: str, code: str, languages: Mapping[str, str] = LANGUAGES) -> str:
    """Returns the English name of a language.

    Args:
        languages: code → name, of those that the model knows.

    Raises:
        InvalidRequest: the code is not known.
    """
    name = languages.get(code.lower())
    if name is None:
        raise InvalidRequest(
            f"{field} is {code[:50]!r}; it must be the code of a language: {', '.join(languages)}.", parameter=field
        )
    return name
