"""Pairs of texts and truncated texts get the same tokens and token types as in Transformers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import processors

from quire.errors import ContextTooLong, InvalidRequest
from quire.tokenizer.files import read_tokenizer_files
from tests.tokenizer_svc.conftest import CORPUS, byte_level, metaspace, word_piece
from tokenizer_svc import encoder as encoder_module
from tokenizer_svc.chat_template import ChatTemplates, TemplateRejection
from tokenizer_svc.encoder import EncodeOptions, Encoder
from tokenizer_svc.renderer import is_score_template
from tokenizer_svc.score_template import score_texts
from tokenizer_svc.text import TextCodec
from tokenizer_svc.truncation import Truncation

SHORT, LONG = CORPUS[0], " ".join(CORPUS)
SCORE = (
    "{% for m in messages if m.role == 'system' %}[{{ m.content }}]{% endfor %}{{ instruction }}"
    '{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}|'
    '{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}'
)


def saved(folder: Path, kind: str, **config: Any) -> tuple[Encoder, Any]:
    """(our encoder, Transformers' tokenizer) with the post-processor of a model family."""
    tokenizer = {"bert": word_piece, "roberta": byte_level, "xlm-r": metaspace, "decoder": byte_level}[kind]()
    start, end = (tokenizer.token_to_id(token) for token in ("<s>", "</s>"))
    if kind == "bert":
        tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
        cls, sep = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    elif kind == "decoder":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A $B:1 </s>:1", special_tokens=[("</s>", end)]
        )
    else:
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", end), ("<s>", start))
    folder.mkdir(exist_ok=True)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **config).save_pretrained(folder)
    return Encoder(TextCodec(read_tokenizer_files(folder))), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-r", "decoder"])
async def test_pairs_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    encoder, reference = saved(tmp_path, kind)
    for first, second, limit in itertools.product((SHORT, LONG, "a"), (SHORT, LONG, "b"), (None, 9, 40, 41, 1000)):
        truncation = Truncation(limit) if limit else None
        (pair,) = await encoder.encode_pairs([first], [second], EncodeOptions(truncation=truncation), 0, 0)
        expected = reference(
            first, second, truncation="longest_first" if limit else False, max_length=limit, return_token_type_ids=True
        )
        assert list(pair.token_ids) == expected["input_ids"]
        assert (list(pair.token_type_ids) or [0] * len(pair.token_ids)) == expected["token_type_ids"]


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-r", "decoder"])
@pytest.mark.parametrize("side", ["left", "right"])
async def test_cut_texts_are_those_of_transformers(tmp_path: Path, kind: str, side: str) -> None:
    encoder, reference = saved(tmp_path, kind, truncation_side=side)
    keeps_end = side == "left"
    assert encoder._codec.keeps_end == keeps_end
    for special, limit in itertools.product((True, False), (4, 20, 1000)):
        options = EncodeOptions(add_special_tokens=special, truncation=Truncation(limit, keeps_end))
        found = await encoder.encode([SHORT, LONG], options)
        expected = reference([SHORT, LONG], add_special_tokens=special, truncation=True, max_length=limit)
        assert [list(each.token_ids) for each in found] == expected["input_ids"]


async def test_texts_of_several_pieces_are_cut_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, reference = saved(tmp_path, "roberta")
    monkeypatch.setattr(encoder_module, "PIECE_CHARS", 100)
    text = LONG * 10
    for keeps_end in (False, True):
        options = EncodeOptions(add_special_tokens=True, truncation=Truncation(50, keeps_end))
        (found,) = await encoder.encode([text], options)
        reference.truncation_side = "left" if keeps_end else "right"
        assert list(found.token_ids) == reference(text, truncation=True, max_length=50)["input_ids"]


async def test_the_second_text_alone_is_cut_where_the_file_says_so(tmp_path: Path) -> None:
    saved(tmp_path, "bert")
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    definition["truncation"] = {"direction": "Right", "max_length": 64, "strategy": "OnlySecond", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    encoder = Encoder(TextCodec(read_tokenizer_files(tmp_path)))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    options = EncodeOptions(truncation=Truncation(40))
    (pair,) = await encoder.encode_pairs([SHORT], [LONG], options, 0, 0)
    assert list(pair.token_ids) == reference(SHORT, LONG, truncation="only_second", max_length=40)["input_ids"]
    with pytest.raises(InvalidRequest, match="truncate_prompt_tokens leaves only 37"):
        await encoder.encode_pairs([LONG], [SHORT], options, 0, 0)


async def test_one_first_text_goes_with_all_and_each_may_be_cut_by_itself(tmp_path: Path) -> None:
    encoder, reference = saved(tmp_path, "bert")
    pairs = await encoder.encode_pairs([LONG], [SHORT, LONG], EncodeOptions(), 3, 5)
    query = reference(LONG, add_special_tokens=False)["input_ids"][:3]
    for pair, document in zip(pairs, (SHORT, LONG), strict=True):
        cut = reference(document, add_special_tokens=False)["input_ids"][:5]
        assert list(pair.token_ids)[1:4] == query
        assert list(pair.token_ids)[5:-1] == cut
        assert list(pair.token_type_ids) == [0] * 5 + [1] * 6


async def test_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, _ = saved(tmp_path, "bert")
    with pytest.raises(ContextTooLong, match="maximum context length is 20 tokens"):
        await encoder.encode_pairs([SHORT], [SHORT], EncodeOptions(max_tokens=20), 0, 0)
    with pytest.raises(InvalidRequest, match="at least 4"):
        await encoder.encode_pairs([SHORT], [SHORT], EncodeOptions(truncation=Truncation(3)), 0, 0)
    with pytest.raises(InvalidRequest, match="at least 3"):
        await encoder.encode([SHORT], EncodeOptions(add_special_tokens=True, truncation=Truncation(2)))
    monkeypatch.setattr(encoder_module, "MAX_PAIRED_TOKENS", 100)
    with pytest.raises(InvalidRequest, match="at most 100"):
        await encoder.encode_pairs([SHORT], [SHORT] * 9, EncodeOptions(), 0, 0)


def test_score_templates_write_pairs() -> None:
    assert is_score_template(SCORE)
    assert not is_score_template("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %} document query")
    templates = ChatTemplates({"default": SCORE}, {}, 1000, "auto")
    pairs = [("a?", "one"), ("a?", "two")]
    assert score_texts(templates, pairs, variables={}, template=None, max_chars=100) == ["a?|one", "a?|two"]
    told = score_texts(templates, pairs[:1], variables={"instruction": "Judge."}, template=None, max_chars=100)
    assert told == ["[Judge.]Judge.a?|one"]
    own = score_texts(templates, pairs[:1], variables={}, template="{{ messages[1].content }}", max_chars=100)
    assert own == ["one"]
    with pytest.raises(TemplateRejection, match="more than 10 characters in total"):
        score_texts(templates, pairs, variables={}, template=None, max_chars=10)
