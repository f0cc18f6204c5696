"""The corpus teaches what is true, and the scores ask what was not taught."""

from __future__ import annotations

import itertools
import json
import re
from random import Random

import pytest
import transformers

from demo_model.corpus import arithmetic, guide, json_objects, lists, memory, tools
from demo_model.corpus.example import Example, Probe
from demo_model.corpus.flags import options
from demo_model.corpus.mix import examples
from demo_model.dataset import MAX_TOKENS, Encoder
from demo_model.evaluate import probes
from demo_model.tokenizer import VOCAB_SIZE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def corpus() -> list[Example]:
    return list(itertools.islice(examples(7), 10_000))


@pytest.fixture(scope="module")
def encoder(tokenizer: transformers.PreTrainedTokenizerFast) -> Encoder:
    return Encoder(tokenizer)


def pairs(corpus: list[Example]) -> list[tuple[str, str]]:
    """(question, answer) of every turn."""
    return [
        (str(question["content"]), str(answer["content"]))
        for example in corpus
        for question, answer in itertools.pairwise(example.messages)
        if question["role"] == "user" and answer["role"] == "assistant"
    ]


def test_the_same_seed_gives_the_same_corpus(corpus: list[Example]) -> None:
    assert corpus[:500] == list(itertools.islice(examples(7), 500))
    assert corpus[:500] != list(itertools.islice(examples(8), 500))


def test_sums_are_right(corpus: list[Example]) -> None:
    found = [
        match for _, answer in pairs(corpus) if (match := re.fullmatch(r"(\d+) ([+*-]) (\d+) = (-?\d+)\.", answer))
    ]
    assert len(found) > 500
    for match in found:
        assert arithmetic.result(int(match[1]), match[2], int(match[3])) == int(match[4])


def test_json_is_valid(corpus: list[Example]) -> None:
    found = [answer for _, answer in pairs(corpus) if answer.startswith("{")]
    assert len(found) > 500
    assert all(isinstance(json.loads(answer), dict) for answer in found)


def test_calls_name_a_tool_on_offer_with_its_parameters(corpus: list[Example]) -> None:
    calls = 0
    for example in corpus:
        offered = {tool["function"]["name"]: tool["function"]["parameters"]["required"] for tool in example.tools}
        for message in example.messages:
            for call in re.findall(r"<tool_call>\n(.*)\n</tool_call>", str(message["content"])):
                parsed = json.loads(call)
                assert list(parsed["arguments"]) == offered[parsed["name"]]
                calls += 1
    assert calls > 500


def test_names_are_recalled_as_they_were_told(corpus: list[Example]) -> None:
    for example in corpus:
        for message in example.messages:
            for name in re.findall(r"^(?:Your name is|You are) (\w+)\.$", str(message["content"])):
                assert any(
                    re.search(rf"\b{name}\b", str(m["content"])) for m in example.messages if m["role"] == "user"
                )


def test_no_probe_is_taught(corpus: list[Example]) -> None:
    taught = {re.sub(r"[\W\d_]+", " ", question).lower().strip() for question, _ in pairs(corpus)}
    for kind, (_, some) in probes().items():
        if kind in ("greetings and Quire", "arithmetic, two numbers up to 50"):
            asked = {re.sub(r"[\W\d_]+", " ", str(probe.messages[-1]["content"])).lower().strip() for probe in some}
            assert not asked & taught


def test_probes_accept_right_answers_and_refuse_wrong_ones() -> None:
    def check(probe: Probe, right: str) -> None:
        assert probe.judge(right)
        assert not probe.judge("I don't know that.")

    random = Random(1)
    draw = Random(5)
    found = tools.offer(draw, made_up=1.0).need(draw)
    call = json.dumps({"name": found.name, "arguments": found.arguments})
    check(tools.probe(Random(5)), f"<tool_call>\n{call}\n</tool_call>")
    copied = lists.copy_probe(random)
    check(copied, str(copied.messages[-1]["content"]))
    told = memory.name_probe(random)
    check(told, str(told.messages[1]["content"]))
    wanted = json_objects.probe(Random(2))
    assert not wanted.judge("{}")
    assert not wanted.judge("[")
    for probe, topic in zip(guide.probes(), guide.topics(), strict=False):
        check(probe, topic.answer)


def test_the_flags_that_are_taught_are_flags_of_quire() -> None:
    assert set(guide.flags()) <= {name for option in options() for name in option.names}


def test_every_topic_answers_its_own_probe() -> None:
    for topic in guide.topics():
        assert any(keyword in topic.answer for keyword in topic.keywords)


def test_what_is_held_out_is_not_taught() -> None:
    random = Random(7)
    taught = {skill(random)[0].question for skill in (guide.guide, guide.flag, guide.greeting) for _ in range(10_000)}
    asked = {probe.messages[-1]["content"] for probe in guide.probes()}
    assert len(asked) > 100
    assert not asked & taught


def test_tokenizer(tokenizer: transformers.PreTrainedTokenizerFast, encoder: Encoder, corpus: list[Example]) -> None:
    assert len(tokenizer) == VOCAB_SIZE
    texts = encoder.texts(corpus[:300])
    assert all(tokenizer.decode(tokenizer(text)["input_ids"]) == text for text in texts)
    # A word is spelled alike at the start and inside, which is what lets the model copy.
    start, inside = tokenizer("blorvik")["input_ids"], tokenizer("say blorvik")["input_ids"]
    assert inside[-len(start) :] == start


def test_the_answers_are_learned_and_nothing_else(
    tokenizer: transformers.PreTrainedTokenizerFast, encoder: Encoder, corpus: list[Example]
) -> None:
    for example in corpus[:300]:
        (encoded,) = encoder.encode([example])
        assert len(encoded.token_ids) <= MAX_TOKENS
        learned = tokenizer.decode(encoded.token_ids[encoded.learned])
        answers = [message for message in example.messages if message["role"] == "assistant"]
        thoughts = [message.get("reasoning_content") for message in answers]
        thoughts = [f"{thought}\n</think>\n\n" if thought else "" for thought in thoughts]
        texts = [f"{message['content']}<|im_end|>" for message in answers]
        assert learned == "".join(thought + text for thought, text in zip(thoughts, texts, strict=True))


def test_a_template_with_thinking(tokenizer: transformers.PreTrainedTokenizerFast) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=True)
    assert prompt.endswith("<|im_start|>assistant\n<think>\n")
