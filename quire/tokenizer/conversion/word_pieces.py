"""Converts vocab.txt: WordPiece."""

from __future__ import annotations

from quire.errors import StartupError
from quire.tokenizer.conversion.source import Converted, Source
from quire.tokenizer.definition import around, whole
from quire.tokenizer.vocabulary_files import WORD_PIECES

_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "ConvBertTokenizer", "MobileBertTokenizer")
_SPECIAL = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
}  # fmt: skip


def convert_words(source: Source) -> Converted:
    """
    Raises:
        StartupError: the file cannot be read, or the class is not known.
    """
    if source.tokenizer_class not in ("", *_CLASSES):
        raise source.refuse_class(WORD_PIECES, _CLASSES)
    path = source.folder / WORD_PIECES
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"{path} cannot be read: {error}") from error
    vocabulary = {text: index for index, text in enumerate(lines)}
    tokens = source.place_tokens(vocabulary)
    special = source.named_tokens(_SPECIAL, vocabulary)
    first, last = [special["cls_token"]], [special["sep_token"]]
    model = {
        "type": "WordPiece", "unk_token": special["unk_token"], "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": vocabulary,
    }  # fmt: skip
    normalizer = {
        "type": "BertNormalizer", "clean_text": True, "strip_accents": source.config.get("strip_accents"),
        "handle_chinese_chars": source.flag("tokenize_chinese_chars", True),
        "lowercase": source.flag("do_lower_case", True),
    }  # fmt: skip
    return Converted(
        whole(
            model, tokens, normalizer=normalizer, pre_tokenizer={"type": "BertPreTokenizer"},
            decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
            post_processor=around(vocabulary, first, last, again=[]),
        ),
        special,
    )  # fmt: skip
