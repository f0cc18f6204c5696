"""Checks with other libraries whether constrained outputs of a running server satisfy their constraints.

    python -m benchmarks.constraint_validity http://127.0.0.1:8000 --suite jsonschema-4.26.0

Uses handwritten and generated schemas, regular expressions and grammars; with --suite, also the schemas of the JSON
Schema test suite, which is part of the source distribution of `jsonschema` (`pip download --no-deps --no-binary
jsonschema jsonschema`, unpacked). Each is requested twice at temperature 1.5. An output must be valid or cut off at
max_tokens, or the constraint refused with 400; anything else is a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import lark

from benchmarks.constraint_cases import GRAMMARS, REGEXES, SCHEMAS, generated_schemas

_AT_ONCE = 16
_TIMES = 2
_MAX_TOKENS = 300
_DRAFT = "json/tests/draft2020-12"


@dataclass(frozen=True)
class Case:
    """A constraint, and the function that checks outputs against it."""

    kind: str
    fields: dict[str, Any]
    holds: Callable[[str], bool]


@dataclass
class Tally:
    """Results of the constraints of one kind."""

    constraints: int = 0
    refused: int = 0
    outputs: Counter[str] = field(default_factory=Counter)


def cases(suite: Path | None) -> Iterator[Case]:
    """All constraints."""
    for name, schemas in (
        ("schemas by hand", SCHEMAS),
        ("generated schemas", generated_schemas(130)),
        ("schemas of the suite", list(suite_schemas(suite)) if suite else []),
    ):
        for schema in schemas:
            yield Case(name, {"structured_outputs": {"json": schema}}, partial(_of_schema, schema))
    for pattern in REGEXES:
        yield Case("expressions", {"structured_outputs": {"regex": pattern}}, partial(_of_regex, pattern))
    for grammar in GRAMMARS:
        yield Case("grammars", {"structured_outputs": {"grammar": grammar}}, partial(_of_grammar, grammar))


def suite_schemas(folder: Path) -> Iterator[Any]:
    """Each schema of the test suite once, without those of optional features."""
    known = set()
    for path in sorted((folder / _DRAFT).glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            text = json.dumps(group["schema"], sort_keys=True)
            if text not in known:
                known.add(text)
                yield group["schema"]


def _of_schema(schema: Any, text: str) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)))


def _of_regex(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def _of_grammar(grammar: str, text: str) -> bool:
    try:
        lark.Lark(grammar).parse(text)
    except lark.exceptions.LarkError:
        return False
    return True


async def _try(client: httpx.AsyncClient, case: Case, tally: Tally, backend: str) -> None:
    fields = {"structured_outputs": {**case.fields["structured_outputs"], "backend": backend}}
    body = {"prompt": "An example: ", "temperature": 1.5, "max_tokens": _MAX_TOKENS, "n": _TIMES, **fields}
    answer = await client.post("/v1/completions", json=body)
    tally.constraints += 1
    if answer.status_code == 400:
        tally.refused += 1
        return
    answer.raise_for_status()
    for choice in answer.json()["choices"]:
        tally.outputs[outcome := _outcome(case, choice)] += 1
        if outcome == "not valid":
            print(f"not valid: {choice['text']!r} for {json.dumps(fields)}")


def _outcome(case: Case, choice: dict[str, Any]) -> str:
    if choice["finish_reason"] == "length":
        return "cut"
    try:
        return "valid" if case.holds(choice["text"]) else "not valid"
    except ValueError:  # not JSON
        return "not valid"


async def measure(url: str, suite: Path | None, backend: str) -> dict[str, Tally]:
    """Tries all constraints; returns kind → results."""
    tallies: dict[str, Tally] = {}
    room = asyncio.Semaphore(_AT_ONCE)

    async def run(case: Case) -> None:
        async with room:
            await _try(client, case, tallies.setdefault(case.kind, Tally()), backend)

    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        await asyncio.gather(*map(run, cases(suite)))
    return tallies


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("url")
    parser.add_argument("--suite", type=Path, help="folder of jsonschema's unpacked source distribution")
    parser.add_argument("--backend", default="auto")
    arguments = parser.parse_args()
    tallies = asyncio.run(measure(arguments.url, arguments.suite, arguments.backend))
    heads = ("", "constraints", "refused (400)", "outputs", "valid", "cut at max_tokens", "not valid")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for name, tally in tallies.items():
        found = tally.outputs
        print(f"| {name} | {tally.constraints} | {tally.refused} | {found.total()} | {found['valid']} | {found['cut']} "
              f"| {found['not valid']} |")  # fmt: skip


if __name__ == "__main__":
    main()
