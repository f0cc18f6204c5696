"""The page on vLLM compatibility is current and true."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner

from quire.cli import all_commands, cli
from quire.compatibility.fields import FIELDS
from quire.compatibility.names import COMMANDS, TESTS_OF_FLAGS
from quire.compatibility.page import (
    Row,
    capability_rows,
    command_rows,
    compatibility_page,
    field_rows,
    flag_rows,
    metric_rows,
    route_rows,
    serve_fields,
    value_rows,
    variable_rows,
)
from tests.support.for_each import for_each

ROOT = Path(__file__).parents[3]
ROWS = [
    *flag_rows(), *command_rows(), *variable_rows(), *metric_rows(), *route_rows(), *field_rows(), *value_rows(),
    *capability_rows(),
]  # fmt: skip


def test_the_page_is_current() -> None:
    page = ROOT / "docs" / "compatibility.md"
    assert page.read_text(encoding="utf-8") == compatibility_page(), "run `make docs`"


def test_the_commands_are_there() -> None:
    assert set(COMMANDS) <= {name for name, _ in all_commands()}


def test_nothing_is_left_out() -> None:
    assert (len(flag_rows()), len(command_rows()), len(metric_rows())) == (361, 8, 47)
    assert len({row.name for row in ROWS}) == len(ROWS)


@for_each("test", sorted({row.test for row in ROWS if row.test}))
def test_a_test_that_is_named_is_there(test: str) -> None:
    file, _, function = test.partition("::")
    assert (ROOT / file).is_file()
    assert not function or re.search(rf"^(async )?def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.M)


def test_a_test_uses_the_field_that_it_stands_for() -> None:
    for field, test in FIELDS.items():
        assert re.search(rf"\b{field}\b", (ROOT / test).read_text(encoding="utf-8")), field


@for_each("row", value_rows())
def test_a_value_is_what_it_is_called(row: Row) -> None:
    result = CliRunner().invoke(cli, ["serve", "model", *row.name.split(), "--show-config"])
    assert (result.exit_code == 2) == (row.status == "refused"), result.output
    if result.exit_code == 2:
        assert row.reason and " ".join(row.reason.split()) in " ".join(result.output.split())


def test_a_capability_has_a_test_or_a_reason() -> None:
    for row in capability_rows():
        assert row.test if row.status in ("works", "acts as") else row.reason, row.name


@for_each("flag", TESTS_OF_FLAGS)
def test_a_test_uses_the_flag_that_it_stands_for(flag: str) -> None:
    text = (ROOT / TESTS_OF_FLAGS[flag]).read_text(encoding="utf-8")
    assert f"--{flag}" in text or flag.replace("-", "_") in text


@for_each("row", [row for row in flag_rows() if row.status == "refused"])
def test_what_is_called_refused_is_refused_with_that_text(row: Row) -> None:
    result = CliRunner().invoke(cli, ["serve", "model", row.name, "8"])
    assert result.exit_code == 2
    assert " ".join(row.reason.split()) in " ".join(result.output.split())


@for_each("row", [row for row in flag_rows() if row.status == "no effect"])
def test_what_is_called_without_effect_says_so(row: Row) -> None:
    result = CliRunner().invoke(cli, ["serve", "model", row.name, "8", "--show-config"])
    assert f"{row.name} has no effect" in result.stderr


def test_what_is_called_working_is_an_option() -> None:
    named = {row.name[2:] for row in flag_rows() if row.status == "works"}
    assert named - serve_fields().keys() == {"config", "help"}


def test_commands_that_work_show_their_help() -> None:
    for row in command_rows():
        result = CliRunner().invoke(cli, [*row.name.split()[1:], "--help"])
        assert (result.exit_code == 0) == (row.status == "works"), row.name
