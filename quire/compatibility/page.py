"""`docs/compatibility.md`, made from the options and from what is known of vLLM's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quire.cli import COMMANDS as OWN
from quire.cli import all_commands
from quire.compatibility.names import COMMANDS, METRICS, METRICS_WITHOUT, ROUTES, TESTS_OF_FLAGS
from quire.compatibility.refused_routes import REFUSED_ROUTES
from quire.options.base import OptionField
from quire.options.command import OptionsCommand
from quire.options.vllm.answers import ANSWERS
from quire.options.vllm.flags import vllm_flags
from quire.options.vllm.variables import OF_OTHERS, READ_ELSEWHERE, WITHOUT_EFFECT

WORKS, ACTS_AS, NO_EFFECT, REFUSED, NOT_BUILT = "works", "acts as", "no effect", "refused", "not built yet"
_FLAGS_TEST = "tests/quire/options/vllm/test_flags.py"
_VARIABLES_TEST = "tests/quire/options/test_environment.py"
_HEAD = """# What of vLLM works here

Every flag, command, variable, metric and route of vLLM that its documentation has, and what becomes of it: it works,
acts as something of Quire, has no effect and says so, is refused with the reason, or waits for a capability that is
named. The last column names a test that uses it. That flags and variables are what they are called here is tested, too.
Options of Quire are in [options.md](options.md).

This page is made by `make docs`.
"""


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    name: str
    status: str
    reason: str
    test: str


def compatibility_page() -> str:
    """The page as Markdown."""
    tables = {
        "Flags of `vllm serve`": flag_rows(), "Commands": command_rows(), "Environment variables": variable_rows(),
        "Metrics": metric_rows(), "Routes": route_rows(),
    }  # fmt: skip
    return _HEAD + "".join(_table(title, rows) for title, rows in tables.items())


def serve_fields() -> Mapping[str, OptionField]:
    """The options of `quire serve` by name, with dashes."""
    command = OWN["serve"]()
    if not isinstance(command, OptionsCommand):
        raise TypeError("quire serve has no options")
    return {field.flag[2:]: field for group in command.sections() for field in group.fields}


def flag_rows() -> list[Row]:
    """Of all flags, current ones and others."""
    fields = serve_fields()
    return [_flag_row(name, fields.get(name)) for name in vllm_flags()]


def _flag_row(name: str, field: OptionField | None) -> Row:
    test = TESTS_OF_FLAGS.get(name, _FLAGS_TEST)
    if field is not None:
        return Row(f"--{name}", WORKS, field.metadata["deprecated"], test)
    if name in ANSWERS:
        return Row(f"--{name}", ANSWERS[name].kind, ANSWERS[name].said, _FLAGS_TEST)
    return Row(f"--{name}", WORKS, "", "tests/quire/options/test_help.py" if name == "help" else _VARIABLES_TEST)


def command_rows() -> list[Row]:
    """Of vLLM's commands."""
    built = {name for name, _ in all_commands()}
    return [
        Row(f"vllm {name}", WORKS if name in built else NOT_BUILT, f"`quire {name}`" if name in built else "", test)
        for name, test in COMMANDS.items()
    ]


def variable_rows() -> list[Row]:
    """Of vLLM's variables, those of libraries and of other programs too."""
    acting = {
        name: Row(name, ACTS_AS, f"It is read as {field.environment_variable}, where that is not set.", _VARIABLES_TEST)
        for field in serve_fields().values()
        for name in field.metadata["variables"]
    }
    rows = [
        *acting.values(),
        *(Row(name, WORKS, reason, _VARIABLES_TEST) for name, reason in READ_ELSEWHERE.items()),
        *(Row(name, NO_EFFECT, reason, _VARIABLES_TEST) for name, reason in {**WITHOUT_EFFECT, **OF_OTHERS}.items()),
    ]
    return sorted(rows, key=lambda row: row.name)


def metric_rows() -> list[Row]:
    """Of vLLM's metrics."""
    test = "tests/gateway/metrics/test_compatibility.py"
    return [
        Row(f"vllm:{name}", NOT_BUILT if name in METRICS_WITHOUT else WORKS, METRICS_WITHOUT.get(name, ""), test)
        for name in METRICS
    ]


def route_rows() -> list[Row]:
    """Of the routes of vLLM's server."""
    test = "tests/gateway/endpoints/test_compatibility.py"
    offered = [
        Row(route, NOT_BUILT if missing else WORKS, f"It needs {missing}." if missing else "", test)
        for route, missing in ROUTES.items()
    ]
    return [*offered, *(Row(route, REFUSED, reason, test) for route, reason in REFUSED_ROUTES.items())]


def _table(title: str, rows: Sequence[Row]) -> str:
    lines = "".join(
        f"| `{row.name}` | {row.status} | {_escaped(row.reason)} | {row.test and f'`{row.test}`'} |\n" for row in rows
    )
    counts = ", ".join(f"{count} {status}" for status, count in _counts(rows))
    return f"\n## {title}\n\n{len(rows)}: {counts}.\n\n| name | status | reason | test |\n|---|---|---|---|\n{lines}"


def _counts(rows: Iterable[Row]) -> list[tuple[str, int]]:
    statuses = [str(row.status) for row in rows]
    return [(status, statuses.count(status)) for status in dict.fromkeys(statuses)]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
