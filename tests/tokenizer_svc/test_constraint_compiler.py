"""Constraints are compiled once, in processes that contain hostile input."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quire.errors import FailedPrecondition, InvalidRequest, StartupError
from quire.options.structured_outputs import StructuredOutputsOptions
from quire.structured import registry
from quire.structured.asked import AskedConstraint
from quire.structured.base import Constraint, ConstraintRequest, Form, constraint_key
from quire.tokenizer.modes import TokenizerPlace
from tests.support.waiting import WAIT_SECONDS, eventually
from tokenizer_svc import constraint_compiler
from tokenizer_svc.child import Message
from tokenizer_svc.child_pool import ChildPool
from tokenizer_svc.constraint_compiler import MAX_CHOICES, MAX_TEXT_BYTES, ConstraintCompiler

pytestmark = pytest.mark.asyncio(loop_scope="module")

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
HOSTILE = {
    "10,000 levels": (Form.JSON_SCHEMA, '{"items":' * 10_000 + "{}" + "}" * 10_000),
    "60,000 brackets": (Form.JSON_SCHEMA, "[" * 60_000),
    "a cycle of references": (
        Form.JSON_SCHEMA, '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}'
    ),
    "a reference to itself": (Form.JSON_SCHEMA, '{"$ref": "#"}'),
    "another document": (Form.JSON_SCHEMA, '{"$ref": "https://example.com/schema.json"}'),
    "maxLength": (Form.JSON_SCHEMA, '{"type": "string", "maxLength": 1000000000}'),
    "maxItems": (Form.JSON_SCHEMA, '{"type": "array", "maxItems": 1000000000}'),
    "100,000 values": (Form.JSON_SCHEMA, json.dumps({"enum": [f"v{number}" for number in range(100_000)]})),
    "20,000 properties": (
        Form.JSON_SCHEMA, json.dumps({"properties": {f"p{number}": {"type": "null"} for number in range(20_000)}})
    ),
    "400 digits": (Form.JSON_SCHEMA, '{"type": "string", "maxLength": 1' + "0" * 400 + "}"),
    "the least integer": (Form.JSON_SCHEMA, '{"enum": [1, -9223372036854775808]}'),
    "a message that is cut within a character": (Form.JSON_SCHEMA, json.dumps({"minimum": "\u00e9" * 300})),
    "a large divisor": (Form.JSON_SCHEMA, '{"type": "integer", "multipleOf": 1000000007}'),
    "repeated repetition": (Form.REGEX, "(a+)+$"),
    "1e9 repetitions": (Form.REGEX, "a{1000000000}"),
    "60,000 groups": (Form.REGEX, "(" * 60_000 + "a" + ")" * 60_000),
    "half a group": (Form.REGEX, "a("),
    "nothing to match": (Form.REGEX, r"[^\s\S]"),
    "20,000 groups of a grammar": (Form.GRAMMAR, "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "half a grammar": (Form.GRAMMAR, "start: ((("),
    "50,000 alternatives": (Form.GRAMMAR, "start: " + " | ".join(f'"w{number}"' for number in range(50_000))),
}  # fmt: skip


def asked(content: Any, form: Form = Form.JSON_SCHEMA, **choice: Any) -> AskedConstraint:
    text = content if isinstance(content, str) else json.dumps(content)
    return AskedConstraint(ConstraintRequest(form, text), **choice)


def new_compiler(folder: Path, **options: Any) -> ConstraintCompiler:
    return ConstraintCompiler(TokenizerPlace("auto", "", str(folder)), StructuredOutputsOptions(**options))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def compiler(folders: dict[str, Path]) -> AsyncIterator[ConstraintCompiler]:
    running = new_compiler(folders["byte_level"])
    yield running
    await running.close()


@pytest.mark.parametrize("comes_first", [False, True])
async def test_a_process_is_prepared_unless_a_constraint_has_started_one(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, comes_first: bool
) -> None:
    started = []
    run = asyncio.create_subprocess_exec

    async def counted(*arguments: Any, **others: Any) -> asyncio.subprocess.Process:
        started.append(arguments)
        return await run(*arguments, **others)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", counted)
    running = new_compiler(folders["byte_level"])
    if comes_first:
        await running.compile(asked("a+", Form.REGEX))
        assert len(started) == 1
    await running.prepare()
    assert len(started) == 1
    await running.compile(asked("b+", Form.REGEX))
    assert len(started) == 1  # it is already running
    await running.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """Messages sent to the compiling processes."""
    messages: list[Message] = []
    ask = ChildPool.ask

    async def counted(pool: ChildPool, request: Message) -> Message:
        messages.append(request)
        return await ask(pool, request)

    monkeypatch.setattr(ChildPool, "ask", counted)
    return messages


async def test_a_constraint_is_named_by_what_is_in_it(compiler: ConstraintCompiler) -> None:
    compiled = await compiler.compile(asked(PERSON))
    assert compiled == Constraint("guidance", compiled.grammar, constraint_key("guidance", compiled.grammar))
    assert b'"name"' in compiled.grammar


async def test_the_same_is_compiled_once(compiler: ConstraintCompiler, sent: list[Message]) -> None:
    wanted = asked({"const": "once"})
    first = await asyncio.gather(*(compiler.compile(wanted) for _ in range(20)))
    later = await compiler.compile(asked({"const": "once"}, backend="auto"))
    assert len(sent) == 1
    assert {each.key for each in (*first, later)} == {later.key}


async def test_what_makes_another_constraint_is_another(compiler: ConstraintCompiler) -> None:
    request = ConstraintRequest(Form.JSON_SCHEMA, json.dumps(PERSON))
    changed = (
        ConstraintRequest(Form.JSON_SCHEMA, json.dumps(PERSON), disable_any_whitespace=True),
        ConstraintRequest(Form.JSON_SCHEMA, json.dumps(PERSON), disable_additional_properties=True),
        ConstraintRequest(Form.JSON_SCHEMA, json.dumps(PERSON), whitespace_pattern=" ?"),
    )
    keys = {(await compiler.compile(AskedConstraint(each))).key for each in (request, *changed)}
    assert len(keys) == 4


async def test_who_goes_away_takes_nothing_from_others(compiler: ConstraintCompiler, sent: list[Message]) -> None:
    wanted = asked({"const": "left"})
    leaving, staying = (asyncio.create_task(compiler.compile(wanted)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).backend == "guidance"
    assert len(sent) == 1


async def test_a_refusal_that_nobody_waits_for_is_no_error_in_the_log(
    compiler: ConstraintCompiler, caplog: pytest.LogCaptureFixture
) -> None:
    leaving = asyncio.create_task(compiler.compile(asked("left(", Form.REGEX)))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    del leaving
    await eventually(lambda: not compiler._under_way)
    gc.collect()  # reports what nobody has looked at
    assert "never retrieved" not in caplog.text


async def test_a_refusal_is_remembered(compiler: ConstraintCompiler, sent: list[Message]) -> None:
    for _ in range(3):
        with pytest.raises(InvalidRequest, match="unclosed"):
            await compiler.compile(asked("ab(", Form.REGEX))
    assert len(sent) == 1


async def test_all_hostile_ones_are_refused_and_others_served(compiler: ConstraintCompiler) -> None:
    async def refused(name: str) -> str:
        try:
            await compiler.compile(asked(HOSTILE[name][1], HOSTILE[name][0]))
        except InvalidRequest as error:
            return error.message
        pytest.fail(f"{name} is taken")

    began = time.thread_time()
    messages = dict(zip(HOSTILE, await asyncio.gather(*map(refused, HOSTILE)), strict=True))
    assert "nests too deeply" in messages["10,000 levels"]
    assert "no output satisfies it" in messages["a cycle of references"]
    assert "maxLength is 1000" in messages["400 digits"]
    assert "the number -9223372036854775808" in messages["the least integer"]
    assert "is not a char boundary" in messages["a message that is cut within a character"]
    assert time.thread_time() - began < 1.0  # the event loop does none of the work
    assert (await compiler.compile(asked({"const": "after"}))).backend == "guidance"


async def test_what_takes_too_long_or_too_much(
    folders: dict[str, Path], sent: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = new_compiler(folders["byte_level"], constraint_timeout_seconds=0.2)
    for pattern in ("(a|b)*a(a|b){30}", "((a{1,1000}){1,1000}){1,1000}"):
        for count in (1, 2):
            sent.clear()
            with pytest.raises(InvalidRequest, match=r"longer than 0\.2 s|too much memory"):
                await short.compile(asked(pattern, Form.REGEX, backend="outlines"))
            assert len(sent) == 1, f"remembered at attempt {count}, though it may go better another time"
    for pool in short._pools.values():
        monkeypatch.setattr(pool, "_timeout_seconds", WAIT_SECONDS)  # or a busy machine refuses this one too
    assert (await short.compile(asked("a", Form.REGEX, backend="outlines"))).backend == "outlines"
    await short.close()


@pytest.mark.parametrize(
    ("wanted", "backend"),
    [
        (asked({"type": "integer", "multipleOf": 3}, backend="outlines"), "guidance"),
        (asked('root ::= "a" | "b"', Form.GRAMMAR, backend="outlines"), "guidance"),
        (asked({"const": "a"}, backend="outlines"), "outlines"),
        (asked({"const": "a"}, backend="auto"), "guidance"),
    ],
)
async def test_another_backend_takes_what_one_cannot_express(
    compiler: ConstraintCompiler, wanted: AskedConstraint, backend: str
) -> None:
    assert (await compiler.compile(wanted)).backend == backend
    strict = dataclasses.replace(wanted, disable_fallback=True)
    if wanted.backend in (backend, "auto"):
        assert (await compiler.compile(strict)).backend == backend
    else:
        with pytest.raises(InvalidRequest, match="outlines"):
            await compiler.compile(strict)


async def test_what_nobody_can_express(compiler: ConstraintCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_compiler, "is_installed", lambda name: name == "outlines")  # the others start slowly
    with pytest.raises(InvalidRequest, match="uniqueItems"):
        await compiler.compile(asked({"type": "array", "uniqueItems": True, "not": {}}))


async def test_a_backend_that_is_refused_by_name(compiler: ConstraintCompiler) -> None:
    with pytest.raises(InvalidRequest, match=r"backend lm-format-enforcer\. It goes through the vocabulary in Python"):
        await compiler.compile(asked(PERSON, backend="lm-format-enforcer"))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ConstraintRequest(Form.JSON_SCHEMA, " " * (MAX_TEXT_BYTES + 1)), f"has {MAX_TEXT_BYTES + 1} bytes"),
        (ConstraintRequest(Form.CHOICES), "There are 0 choices"),
        (ConstraintRequest(Form.CHOICES, choices=("a",) * (MAX_CHOICES + 1)), f"1 to {MAX_CHOICES} are allowed"),
        (ConstraintRequest(Form.REGEX, "a", whitespace_pattern=" " * 300), "whitespace_pattern has 300"),
    ],
)
async def test_what_is_too_large_reaches_no_process(
    compiler: ConstraintCompiler, sent: list[Message], request_: ConstraintRequest, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        await compiler.compile(AskedConstraint(request_))
    assert not sent


async def test_a_backend_that_nobody_knows(compiler: ConstraintCompiler) -> None:
    with pytest.raises(InvalidRequest, match="'grammarian' does not exist; choose one of guidance, xgrammar"):
        await compiler.compile(asked(PERSON, backend="grammarian"))


async def test_a_backend_that_is_not_installed(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = new_compiler(folders["byte_level"])
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FailedPrecondition, match=r"`pip install quire\[xgrammar\]`"):
        await compiler.compile(asked(PERSON, backend="xgrammar"))
    for config, message in (
        ({}, "`pip install llguidance`"),
        ({"backend": "outlines"}, r"`pip install quire\[outlines\]`"),
        ({"backend": "lm-format-enforcer"}, "hold up every other"),
    ):
        with pytest.raises(StartupError, match=message):
            new_compiler(folders["byte_level"], structured_outputs_config=config)


async def test_the_servers_switches_are_every_requests(folders: dict[str, Path], compiler: ConstraintCompiler) -> None:
    strict = new_compiler(folders["byte_level"], structured_outputs_config={"disable_any_whitespace": True})
    request = ConstraintRequest(Form.JSON_SCHEMA, json.dumps(PERSON), disable_any_whitespace=True)
    assert await strict.compile(asked(PERSON)) == await compiler.compile(AskedConstraint(request))
    await strict.close()
