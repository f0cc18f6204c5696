"""The shapes of answers, streamed and whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers

from benchmarks.models import byte_tokenizer
from gateway.answers.scores import pieces_of
from gateway.tool_parsers.tagged_json import Hermes
from tests.support.gateway_stack import GatewayStack, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = [{"role": "user", "content": "A"}]


async def test_completion(gateway: GatewayStack) -> None:
    answer = await gateway.complete(prompt="A", max_tokens=4)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "fake"
    assert answer["choices"][0] | {"text": "AHOV", "finish_reason": "length", "index": 0} == answer["choices"][0]
    assert answer["usage"] == {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}


async def test_prompts_of_every_kind(gateway: GatewayStack) -> None:
    for prompt, texts in (([32], ["AHO"]), ([[32], [33]], ["AHO", "BIP"]), (["A", "B"], ["AHO", "BIP"])):
        answer = await gateway.complete(prompt=prompt)
        assert [choice["text"] for choice in answer["choices"]] == texts
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(texts)))
        assert answer["usage"]["completion_tokens"] == 3 * len(texts)


async def test_several_choices(gateway: GatewayStack) -> None:
    answer = await gateway.complete(prompt=["A", "B"], n=2)
    assert [choice["text"] for choice in answer["choices"]] == ["AHO", "`gn", "BIP", "aho"]
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 12, "total_tokens": 14}


async def test_chat(gateway: GatewayStack) -> None:
    response = await gateway.post("/v1/chat/completions", {"messages": MESSAGES, "max_completion_tokens": 2})
    answer = response.json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    message = answer["choices"][0]["message"]
    assert (message["role"], answer["choices"][0]["finish_reason"]) == ("assistant", "length")
    assert answer["usage"]["completion_tokens"] == 2


async def test_content_in_parts_is_joined(gateway: GatewayStack) -> None:
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    counts = []
    for content in ("A\nB", parts):
        response = await gateway.post("/tokenize", {"messages": [{"role": "user", "content": content}]})
        counts.append(response.json()["tokens"])
    assert counts[0] == counts[1]


async def test_max_completion_tokens_wins(gateway: GatewayStack) -> None:
    body = {"messages": MESSAGES, "max_tokens": 9, "max_completion_tokens": 2}
    response = await gateway.post("/v1/chat/completions", body)
    assert response.json()["usage"]["completion_tokens"] == 2


async def test_chat_stream_in_order(gateway: GatewayStack) -> None:
    *chunks, usage, done = await gateway.events(
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 4, "stream_options": {"include_usage": True}},
    )
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    whole = await gateway.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4})
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole.json()["choices"][0]["message"]["content"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert usage["choices"] == []
    assert usage["usage"] == whole.json()["usage"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_whole_answers_and_last_chunks_tell_the_fingerprint(gateway: GatewayStack, path: str) -> None:
    body = {"messages": MESSAGES, "prompt": "A", "max_tokens": 4, "stream_options": {"include_usage": True}}
    whole = (await gateway.post(path, body | {"stream_options": None})).json()
    assert whole["system_fingerprint"].startswith("fp_")
    *chunks, end, usage, _ = await gateway.events(path, body)
    assert end["choices"][0]["finish_reason"] == "length"
    assert end["system_fingerprint"] == usage["system_fingerprint"] == whole["system_fingerprint"]
    assert not any("system_fingerprint" in chunk for chunk in chunks)


async def test_completion_stream_with_choices_and_usage(gateway: GatewayStack) -> None:
    body = {"prompt": ["A", "B"], "n": 2, "max_tokens": 3,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True}}  # fmt: skip
    *chunks, last, done = await gateway.events("/v1/completions", body)
    texts = ["", "", "", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
        assert chunk["usage"]["completion_tokens"] == len("".join(texts))
    assert texts == ["AHO", "`gn", "BIP", "aho"]
    assert last["usage"]["completion_tokens"] == 12
    assert done == "[DONE]"


async def test_usage_in_each_chunk_counts_what_the_client_has_got(gateway: GatewayStack) -> None:
    body = {"messages": MESSAGES, "n": 2, "max_tokens": 4, "return_token_ids": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True}}  # fmt: skip
    *chunks, last, _ = await gateway.events("/v1/chat/completions", body)
    assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks[:3]] == ["assistant", "assistant", None]
    got = 0
    for chunk in chunks:
        got += sum(len(choice.get("token_ids") or ()) for choice in chunk["choices"])
        assert chunk["usage"]["completion_tokens"] == got
    assert last["usage"]["completion_tokens"] == got == 8


async def test_the_first_token_shows_even_if_it_is_half_a_character(gateway: GatewayStack) -> None:
    lead, _ = (await gateway.post("/tokenize", {"prompt": "é"})).json()["tokens"]
    first, *others, _ = await gateway.events("/v1/completions", {"prompt": [lead], "max_tokens": 3})
    assert first["choices"][0] | {"text": "", "finish_reason": None} == first["choices"][0]
    assert others[-1]["choices"][0]["finish_reason"] == "length"


async def test_no_usage_unless_asked(gateway: GatewayStack) -> None:
    *chunks, _ = await gateway.events("/v1/completions", {"prompt": "A", "max_tokens": 3})
    assert all("usage" not in chunk for chunk in chunks)


async def test_a_stop_string(gateway: GatewayStack) -> None:
    answer = await gateway.complete(prompt="A", max_tokens=1000, stop=["OV"])
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("AH", "stop", "OV")
    assert answer["usage"]["completion_tokens"] == 4
    kept = await gateway.complete(prompt="A", max_tokens=1000, stop="OV", include_stop_str_in_output=True)
    assert kept["choices"][0]["text"] == "AHOV"


async def test_completion_logprobs(gateway: GatewayStack) -> None:
    answer = await gateway.complete(prompt="A", max_tokens=3, logprobs=2)
    scores = answer["choices"][0]["logprobs"]
    assert scores["tokens"] == ["A", "H", "O"]
    assert scores["token_logprobs"] == [-0.5] * 3
    assert scores["text_offset"] == [0, 1, 2]
    assert scores["top_logprobs"][0] == {"A": -0.5, "B": -1.0, "C": -2.0}


async def test_echo_scores_the_prompt(gateway: GatewayStack) -> None:
    answer = await gateway.complete(prompt="ABC", max_tokens=1, logprobs=0, echo=True)
    choice = answer["choices"][0]
    assert choice["text"].startswith("ABC")
    assert choice["logprobs"]["tokens"][:3] == ["A", "B", "C"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.25, -0.25, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]


async def test_a_beam_search_for_no_tokens_finds_none(gateway: GatewayStack) -> None:
    asked = {"prompt": "ABC", "max_tokens": 0, "echo": True, "logprobs": 0, "use_beam_search": True, "n": 2}
    answer = await gateway.complete(**asked)
    assert [choice["text"] for choice in answer["choices"]] == ["ABC"] * 2
    assert [choice["logprobs"]["tokens"] for choice in answer["choices"]] == [["A", "B", "C"]] * 2
    assert answer["usage"]["completion_tokens"] == 0


async def test_offsets_are_those_of_the_text(gateway: GatewayStack) -> None:
    """A character of several tokens has the same offset for each of them."""
    prompt = "é🙂A"
    choice = (await gateway.complete(prompt=prompt, max_tokens=1, logprobs=0, echo=True))["choices"][0]
    assert choice["text"].startswith(prompt)
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 1, 1, 1, 2, 3]


async def test_offsets_pass_over_special_tokens_that_the_text_has_not(gateway: GatewayStack) -> None:
    special = byte_tokenizer(8192).convert_tokens_to_ids("<|im_start|>")
    asked = {"prompt": [special - 7], "max_tokens": 3, "logprobs": 0}
    for skips, length in ((True, 0), (False, len("<|im_start|>"))):
        choice = (await gateway.complete(**asked, skip_special_tokens=skips))["choices"][0]
        first, _, last = choice["logprobs"]["tokens"]
        assert choice["text"] == f"{first}{'' if skips else '<|im_start|>'}{last}"
        assert choice["logprobs"]["text_offset"] == [0, len(first), len(first) + length]


async def test_an_echo_is_what_was_sent_and_not_what_the_tokenizer_adds(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer(8192)
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", start)]
    )
    tokenizer.save_pretrained(tmp_path)
    async with running_gateway(tmp_path) as stack:
        asked = {"prompt": "éA", "max_tokens": 2, "logprobs": 0, "echo": True, "return_prompt_text": True}
        choice = (await stack.complete(**asked))["choices"][0]
        assert choice["prompt_text"] == "<|im_start|>éA"
        assert choice["text"].startswith("éA")
        assert choice["logprobs"]["tokens"][0] == "<|im_start|>"
        assert choice["logprobs"]["text_offset"][:5] == [0, 0, 0, 1, 2]
        *chunks, _ = await stack.events("/v1/completions", {"model": "fake", **asked})
        assert "".join(each["choices"][0]["text"] for each in chunks) == choice["text"]
        # The model gets fewer tokens than were sent.
        choice = (await stack.complete(**asked, truncate_prompt_tokens=2))["choices"][0]
        assert choice["text"].startswith("\N{REPLACEMENT CHARACTER}A")


@pytest.mark.parametrize(
    ("text", "tokens", "pieces"),
    [
        ("ab", [b"a", b"b"], [b"a", b"b"]),
        ("ab", [b"<s>", b" a", b"b", b"</s>"], [b"", b"a", b"b", b""]),
        (" a", [b" ", b" a"], [b"", b" a"]),
        (" a", [b" a"], [b" a"]),
        ("é", [b"\xc3", b"\xa9"], [b"\xc3", b"\xa9"]),
        ("AB", [b"<s>", b"a", b"b"], [b"<s>", b"a", b"b"]),
    ],
)
async def test_what_a_text_has_of_its_tokens(text: str, tokens: list[bytes], pieces: list[bytes]) -> None:
    assert pieces_of(text, tokens) == pieces


@pytest.mark.parametrize("max_tokens", [0, 2])
async def test_echo_scores_the_prompt_in_streams_too(gateway: GatewayStack, max_tokens: int) -> None:
    body = {"prompt": ["ABC", "D"], "n": 2, "max_tokens": max_tokens, "logprobs": 1, "echo": True}
    *chunks, _ = await gateway.events("/v1/completions", body)
    whole = await gateway.complete(**body)
    firsts: dict[int, Any] = {}
    found: dict[int, Any] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        first = firsts.setdefault(choice["index"], choice)
        told = found.setdefault(choice["index"], {"text": "", "logprobs": {name: [] for name in first["logprobs"]}})
        told["text"] += choice["text"]
        for name, values in (choice["logprobs"] or {}).items():
            told["logprobs"][name] += values
    for choice in whole["choices"]:
        assert found[choice["index"]] == {"text": choice["text"], "logprobs": choice["logprobs"]}
    assert firsts[0]["text"].startswith("ABC")
    assert firsts[3]["logprobs"]["tokens"][0] == "D"


async def test_chat_logprobs(gateway: GatewayStack) -> None:
    body = {"messages": MESSAGES, "max_tokens": 2, "logprobs": True, "top_logprobs": 1}
    whole = (await gateway.post("/v1/chat/completions", body)).json()["choices"][0]["logprobs"]["content"]
    assert len(whole) == 2
    assert all(entry["logprob"] == -0.5 and bytes(entry["bytes"]).decode() == entry["token"] for entry in whole)
    assert [len(entry["top_logprobs"]) for entry in whole] == [1, 1]
    *chunks, _ = await gateway.events("/v1/chat/completions", body)
    streamed = [
        entry for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]  # fmt: skip
    assert streamed == whole


async def test_tokens_as_ids(gateway: GatewayStack) -> None:
    answer = await gateway.complete(prompt="A", logprobs=0, return_tokens_as_token_ids=True, return_token_ids=True)
    assert answer["choices"][0]["logprobs"]["tokens"] == ["token_id:32", "token_id:39", "token_id:46"]
    assert answer["choices"][0]["token_ids"] == [32, 39, 46]


async def test_prompt_logprobs(gateway: GatewayStack) -> None:
    answer = await gateway.complete(prompt="AB", prompt_logprobs=0)
    assert answer["choices"][0]["prompt_logprobs"] == [
        None, {"33": {"logprob": -0.25, "rank": 3, "decoded_token": "B"}},
    ]  # fmt: skip


async def test_what_a_choice_was_not_asked_for_is_null(gateway: GatewayStack) -> None:
    choice = (await gateway.complete(prompt="A"))["choices"][0]
    assert [choice[name] for name in ("logprobs", "token_ids", "prompt_logprobs", "prompt_token_ids")] == [None] * 4
    choice = (await gateway.complete(prompt=[32, 33], prompt_logprobs=0, return_token_ids=True))["choices"][0]
    assert choice["prompt_token_ids"] == [32, 33]
    assert len(choice["prompt_logprobs"]) == 2


async def test_what_reaches_the_engine(gateway: GatewayStack) -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "min_tokens": 1, "ignore_eos": True,
        "presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.5, "logit_bias": {"5": 2},
        "stop_token_ids": [9], "priority": 4, "request_id": "mine", "allowed_token_ids": [40, 3], "bad_words": ["AB"],
    }  # fmt: skip
    await gateway.complete(**fields)
    generation = gateway.engine.record.started[-1]
    sampling = generation.sampling
    for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
        assert getattr(sampling, name) == pytest.approx(fields[name], rel=1e-6)
    assert (sampling.top_k, sampling.seed, sampling.min_tokens, sampling.ignore_eos) == (7, 3, 1, True)
    assert (dict(sampling.logit_bias), list(sampling.stop_token_ids)) == ({5: 2.0}, [9])
    assert [list(run.token_ids) for run in sampling.bad_words] == [[32, 33]]
    assert list(sampling.allowed_token_ids) == [40, 3]
    assert (generation.priority, generation.request_id, generation.model) == (4, "mine", "fake")
    assert generation.timeout_ms > 3_000_000


async def test_truncation_keeps_the_end(gateway: GatewayStack) -> None:
    await gateway.complete(prompt=[1, 2, 3, 4], truncate_prompt_tokens=2)
    assert list(gateway.engine.record.started[-1].prompt_token_ids) == [3, 4]


async def test_models_and_tokens(gateway: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> None:
    models = (await gateway.client.get("/v1/models")).json()
    assert [(card["id"], card["max_model_len"]) for card in models["data"]] == [("fake", 4096)]
    card = models["data"][0]
    assert (await gateway.client.get("/v1/models/fake")).json() == card
    assert (card["type"], card["max_context_length"]) == ("base", 4096)  # as Mistral's clients need
    capabilities = {"completion_chat": True, "function_calling": False, "vision": False, "audio": False}
    assert card["capabilities"] == capabilities
    monkeypatch.setattr(gateway.context, "tool_parser", Hermes)
    card = (await gateway.client.get("/v1/models/fake")).json()
    assert card["capabilities"] == capabilities | {"function_calling": True}
    tokens = (await gateway.post("/tokenize", {"prompt": "AB", "return_token_strs": True})).json()
    assert tokens == {"count": 2, "max_model_len": 4096, "tokens": [32, 33], "token_strs": ["A", "B"]}
    assert (await gateway.post("/detokenize", {"tokens": [32, 33]})).json() == {"prompt": "AB"}


async def test_truncation_may_keep_the_beginning(gateway: GatewayStack) -> None:
    await gateway.complete(prompt=[1, 2, 3, 4], truncate_prompt_tokens=2, truncation_side="right")
    assert list(gateway.engine.record.started[-1].prompt_token_ids) == [1, 2]


async def test_the_prompts_text_is_told_where_it_is_asked_for(gateway: GatewayStack) -> None:
    answer = await gateway.complete(prompt=["AB", "C"], return_prompt_text=True)
    assert [choice["prompt_text"] for choice in answer["choices"]] == ["AB", "C"]
    assert not answer["choices"][0]["text"].startswith("AB")
    body = {"messages": MESSAGES, "max_tokens": 2, "return_prompt_text": True}
    whole = (await gateway.post("/v1/chat/completions", body)).json()
    first, *others, _ = await gateway.events("/v1/chat/completions", body)
    assert MESSAGES[0]["content"] in whole["prompt_text"] == first["prompt_text"]
    assert not any("prompt_text" in chunk for chunk in others)


async def test_a_streams_choices_begin_with_what_is_told_of_their_prompts(gateway: GatewayStack) -> None:
    body = {"prompt": ["AB", "C"], "n": 2, "max_tokens": 3, "return_token_ids": True, "return_prompt_text": True}
    *chunks, _ = await gateway.events("/v1/completions", body)
    told: dict[int, list[Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        told.setdefault(choice["index"], []).append((choice.get("prompt_token_ids"), choice.get("prompt_text")))
    assert [told[index][0] for index in range(4)] == [([32, 33], "AB")] * 2 + [([34], "C")] * 2
    assert not any(ids or text for index in range(4) for ids, text in told[index][1:])


async def test_whoever_has_the_last_turn_goes_on_where_none_is_opened(gateway: GatewayStack) -> None:
    messages = [*MESSAGES, {"role": "bard", "content": "Once"}]
    body = {"messages": messages, "max_tokens": 2, "add_generation_prompt": False}
    answer = (await gateway.post("/v1/chat/completions", body)).json()
    assert answer["choices"][0]["message"]["role"] == "bard"


@pytest.mark.parametrize(
    ("last", "echoed"),
    [
        ({"role": "assistant", "content": "Once"}, "Once"),
        ({"role": "assistant", "content": [{"type": "text", "text": "Once"}, {"type": "text", "text": "upon"}]},
         "Once\nupon"),
        ({"role": "user", "content": "Once"}, ""),
    ],
)  # fmt: skip
async def test_a_chat_echoes_what_its_answer_goes_on_with(
    gateway: GatewayStack, last: dict[str, Any], echoed: str
) -> None:
    body = {"messages": [*MESSAGES, last], "max_tokens": 2}
    said = (await gateway.post("/v1/chat/completions", body)).json()["choices"][0]["message"]["content"]
    whole = (await gateway.post("/v1/chat/completions", body | {"echo": True})).json()
    assert whole["choices"][0]["message"]["content"] == echoed + said
    *chunks, _ = await gateway.events("/v1/chat/completions", body | {"echo": True})
    streamed = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
    assert "".join(streamed) == echoed + said


async def test_documents_are_for_the_template(gateway: GatewayStack) -> None:
    body = {"messages": MESSAGES, "max_tokens": 2, "return_prompt_text": True}
    documents = [{"title": "A", "text": "the moon is far"}]
    answer = (await gateway.post("/v1/chat/completions", body | {"documents": documents})).json()
    assert "the moon is far" in answer["prompt_text"]


async def test_a_suffix_needs_a_model_that_was_taught_to_fill_in(gateway: GatewayStack) -> None:
    for prompt, told in (("A", "no tokens for it"), ([65], "text prompts")):
        response = await gateway.post("/v1/completions", {"prompt": prompt, "suffix": "Z"})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "suffix"
        assert told in response.json()["error"]["message"]
