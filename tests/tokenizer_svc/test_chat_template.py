"""Chat templates give the same result as in Transformers, within limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import transformers

from quire.errors import InvalidRequest
from tests.support.waiting import WAIT_SECONDS, eventually
from tokenizer_svc.renderer import ChatRenderer

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHATML = """{%- if tools %}{{ '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
{{ '<|im_start|>assistant\\n' }}{% generation %}{{ message.content }}{% endgeneration %}{{ eos_token }}
    {%- else %}
{{ '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
    {%- if thinking is defined and thinking %}<think>{% endif %}
{%- endif %}"""
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What's <b>5 & 6</b>? ☃"},
    {"role": "assistant", "content": "Eleven of"},
]
TOOLS = [{"type": "function", "function": {"name": "ädd", "parameters": {"z": 1, "a": [1.5, None, True]}}}]


def renderer(templates: dict[str, str], timeout_seconds: float = 5.0, max_chars: int = 100_000) -> ChatRenderer:
    return ChatRenderer(
        templates, {"eos_token": "</s>", "bos_token": "<s>"}, timeout_seconds=timeout_seconds, max_chars=max_chars
    )


@contextlib.asynccontextmanager
async def rendering(running: ChatRenderer) -> AsyncIterator[ChatRenderer]:
    """The renderer, with its processes."""
    await running.start()
    try:
        yield running
    finally:
        await running.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chatml() -> AsyncIterator[ChatRenderer]:
    """One for all tests that only render."""
    async with rendering(renderer({"default": CHATML})) as running:
        yield running


async def render(target: ChatRenderer, **changes: Any) -> str:
    request = {
        "messages": MESSAGES, "tools": None, "add_generation_prompt": True, "continue_final_message": False,
        "variables": {}, "template": None,
    }  # fmt: skip
    changed = request | changes
    return (await target.render(json.dumps(changed.pop("messages")).encode(), **changed)).text


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ({"add_generation_prompt": True}, {}),
        ({"add_generation_prompt": False}, {}),
        ({"add_generation_prompt": True, "tools": TOOLS}, {"thinking": True}),
        ({"add_generation_prompt": False, "continue_final_message": True}, {}),
    ],
)
async def test_as_transformers(
    chatml: ChatRenderer, folders: dict[str, Path], options: dict[str, Any], variables: dict[str, Any]
) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(folders["byte_level"])
    expected = reference.apply_chat_template(MESSAGES, chat_template=CHATML, tokenize=False, **options, **variables)
    assert await render(chatml, **options, variables=variables) == expected


async def test_a_template_of_the_request(chatml: ChatRenderer) -> None:
    assert await render(chatml, template="{{ messages | length }} {{ bos_token }}") == "3 <s>"


async def test_an_effort_that_nobody_has_set(chatml: ChatRenderer) -> None:
    template = "{{ reasoning_effort }}"
    assert await render(chatml, template=template, default_effort="medium") == "medium"
    told = {"reasoning_effort": "low"}
    assert await render(chatml, template=template, default_effort="medium", variables=told) == "low"
    template = "{{ reasoning_effort is defined }}"
    assert [await render(chatml, template=template), await render(chatml, template=template, default_effort="")] == [
        "False"
    ] * 2


async def test_tool_use_template() -> None:
    async with rendering(renderer({"default": "plain", "tool_use": "tools"})) as running:
        assert [await render(running), await render(running, tools=TOOLS)] == ["plain", "tools"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for x in y %}", "not valid Jinja"),
        ("{{ nothing.at.all }}", "UndefinedError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% for i in range(99999) %}{{ 'xxxxxxxxxx' }}{% endfor %}", "more than 100000 characters"),
        ("{{ 'x' * 100000000000 }}", "too much memory"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nests too deeply|too much memory"),
    ],
)
async def test_bad_templates_are_the_requests_fault(chatml: ChatRenderer, template: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        await render(chatml, template=template)
    assert refused.value.parameter == ("chat_template" if "Jinja" in message else "messages")
    assert await render(chatml, template="fine") == "fine"


async def test_variables_that_have_a_field_of_their_own(chatml: ChatRenderer) -> None:
    with pytest.raises(InvalidRequest, match="must not set 'tools'") as refused:
        await render(chatml, variables={"tools": []})
    assert refused.value.parameter == "chat_template_kwargs"


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


async def test_an_endless_template_is_stopped_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rendering(renderer({"default": "fine"}, timeout_seconds=0.3)) as running:
        for _ in range(3):
            with pytest.raises(InvalidRequest, match=r"longer than 0\.3 s"):
                await render(running, template=LOOP)
        monkeypatch.setattr(running._pool, "_timeout_seconds", WAIT_SECONDS)  # a busy machine may be slow
        assert await render(running) == "fine"


def render_processes(running: ChatRenderer) -> list[int]:
    return [child._process.pid for child in running._pool._children if child.alive]


async def test_a_killed_process_is_replaced() -> None:
    async with rendering(renderer({"default": "back"})) as running:
        (only,) = render_processes(running)  # the second one starts on demand
        os.kill(only, signal.SIGKILL)
        await eventually(lambda: not render_processes(running), "it does not end")
        assert [await render(running) for _ in range(2)] == ["back", "back"]


async def test_a_second_process_is_started_for_what_would_wait() -> None:
    async with rendering(renderer({"default": "held"}, timeout_seconds=60.0)) as running:
        (first,) = render_processes(running)
        os.kill(first, signal.SIGSTOP)  # makes its current work take long
        held = asyncio.create_task(render(running))
        await asyncio.sleep(0)  # it has the first process
        assert await render(running, template="meanwhile") == "meanwhile"
        assert not held.done()
        os.kill(first, signal.SIGCONT)
        assert await held == "held"


async def test_what_comes_at_once_waits_for_no_start() -> None:
    async with rendering(renderer({"default": "at once"})) as running:
        (first,) = render_processes(running)
        assert await asyncio.gather(*(render(running) for _ in range(20))) == ["at once"] * 20
        assert first in render_processes(running)
        assert len(render_processes(running)) <= 2


@pytest.mark.parametrize("content", ["<", "e", "im_end", "two ", "a\n", "", [{"type": "text", "text": "|"}]])
@pytest.mark.parametrize("trims", [False, True])
async def test_continuing_what_the_template_itself_writes_too(
    chatml: ChatRenderer, folders: dict[str, Path], content: Any, trims: bool
) -> None:
    """The message ends where its content ends, even if the content contains the template's own end marker."""
    template = CHATML.replace("message.content", "message.content | trim") if trims else CHATML
    messages = [*MESSAGES[:2], {"role": "assistant", "content": content}]
    reference = transformers.AutoTokenizer.from_pretrained(folders["byte_level"])
    text = content if isinstance(content, str) else content[0]["text"]
    expected = reference.apply_chat_template(
        [*MESSAGES[:2], {"role": "assistant", "content": text}], chat_template=template, tokenize=False,
        continue_final_message=True,
    )  # fmt: skip
    told = {"add_generation_prompt": False, "continue_final_message": True}
    assert await render(chatml, messages=messages, template=template, **told) == expected


async def test_continuing_a_message_that_the_template_hides(chatml: ChatRenderer) -> None:
    with pytest.raises(InvalidRequest, match="continue_final_message"):
        await render(chatml, continue_final_message=True, template="nothing")


async def test_variables_cannot_replace_fields(chatml: ChatRenderer) -> None:
    with pytest.raises(InvalidRequest, match="'messages'"):
        await render(chatml, variables={"messages": []})


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
LOOPING = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m.content }}{% else %}"
    "{% for part in m['content'] %}[{{ part.text }}]{% endfor %}{% endif %}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("content_format", "template", "content", "expected"),
    [
        ("auto", LOOPING, PARTS, "[a][b]"),
        ("auto", LOOPING, "a", "a"),
        ("auto", LOOPING.replace("is string", "is boolean"), "a", "[a]"),
        (
            "auto",
            LOOPING.replace("for part in m['content']", "set c = m.content %}{% for part in c | list"),
            PARTS,
            "[a][b]",
        ),
        ("auto", PLAIN, PARTS, "a\nb"),
        ("string", LOOPING, PARTS, "a\nb"),
        ("openai", LOOPING, PARTS, "[a][b]"),
        ("openai", LOOPING, "a", "[a]"),
    ],
)
async def test_content_comes_in_the_form_that_the_template_takes(
    content_format: str, template: str, content: Any, expected: str
) -> None:
    limits: dict[str, Any] = {"timeout_seconds": 5.0, "max_chars": 1000}
    async with rendering(ChatRenderer({"default": template}, {}, content_format=content_format, **limits)) as running:
        assert await render(running, messages=[{"role": "user", "content": content}]) == expected


DEVELOPED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "developer", "content": PARTS},
]


@pytest.mark.parametrize(
    ("messages", "template", "expected"),
    [
        (DEVELOPED, "", "system:Be brief.\na\nb user:Hi "),
        (DEVELOPED[1:], "", "system:a\nb user:Hi "),
        (DEVELOPED[:2], "", "system:Be brief. user:Hi "),
        (DEVELOPED, "{# knows 'developer' #}", "system:Be brief. user:Hi developer:a\nb "),
    ],
)
async def test_developers_are_systems_to_templates_that_do_not_know_them(
    messages: list[dict[str, Any]], template: str, expected: str
) -> None:
    shown = "{% for m in messages %}{{ m.role }}:{{ m.content }} {% endfor %}"
    async with rendering(renderer({"default": template + shown})) as running:
        assert await render(running, messages=messages) == expected


async def test_contents_that_cannot_be_joined_are_the_requests_fault() -> None:
    async with rendering(renderer({"default": "x"})) as running:
        (process,) = render_processes(running)
        for content in (None, 1, [1], [{"type": "image"}], [{"type": "text", "text": None}]):
            with pytest.raises(InvalidRequest, match="must have a text, or a list of parts"):
                await running.join(json.dumps([{"role": "user", "content": content}]).encode())
        with pytest.raises(InvalidRequest, match="must have a text, or a list of parts"):
            await running.join(b'[{"role": "user"}]')
        assert render_processes(running) == [process]
