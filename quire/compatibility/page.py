"""Generates `docs/compatibility.md` from the options and from the tables of vLLM's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quire.cli import COMMANDS as OWN
from quire.cli import all_commands
from quire.compatibility.capabilities import CAPABILITIES, VALUES
from quire.compatibility.fields import FIELDS
from quire.compatibility.names import COMMANDS, METRICS, METRICS_WITHOUT, ROUTES, TESTS_OF_FLAGS
from quire.compatibility.refused_fields import REFUSED as REFUSED_FIELDS
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

Every flag, command, variable, metric, route, field of requests and capability of vLLM that its documentation has, and
what becomes of it: it works, acts as something of Quire, has no effect and says so, is refused with the reason, or
waits for a capability that is named. The last column names a test that uses it. That all are what they are called here
is tested, too.
Options of Quire are in [options.md](options.md).

This page is made by `make docs`.
"""


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    name: str
    status: str
    reason: str
    test: str


def compatibility_page() -> str:
    """The page as Markdown."""
    tables = {
        "Flags of `vllm serve`": flag_rows(), "Commands": command_rows(), "Environment variables": variable_rows(),
        "Metrics": metric_rows(), "Routes": route_rows(), "Fields of chats and completions": field_rows(),
        "Values of flags": value_rows(), "Capabilities": capability_rows(),
    }  # fmt: skip
    return _HEAD + "".join(_table(title, rows) for title, rows in tables.items())


def serve_fields() -> Mapping[str, OptionField]:
    """The options of `quire serve` by name, with dashes."""
    command = OWN["serve"]()
    if not isinstance(command, OptionsCommand):
        raise TypeError("quire serve has no options")
    return {field.flag[2:]: field for group in command.sections() for field in group.fields}


def flag_rows() -> list[Row]:
    """Rows for all flags, current ones and others."""
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
    """Rows for vLLM's commands."""
    built = {name for name, _ in all_commands()}
    return [
        Row(f"vllm {name}", WORKS if name in built else NOT_BUILT, f"`quire {name}`" if name in built else "", test)
        for name, test in COMMANDS.items()
    ]


def variable_rows() -> list[Row]:
    """Rows for vLLM's environment variables, and for those of libraries and other programs."""
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
    """Rows for vLLM's metrics."""
    test = "tests/gateway/metrics/test_compatibility.py"
    return [
        Row(f"vllm:{name}", NOT_BUILT if name in METRICS_WITHOUT else WORKS, METRICS_WITHOUT.get(name, ""), test)
        for name in METRICS
    ]


def route_rows() -> list[Row]:
    """Rows for the routes of vLLM's server."""
    test = "tests/gateway/endpoints/test_compatibility.py"
    offered = [
        Row(route, NOT_BUILT if missing else WORKS, f"It needs {missing}." if missing else "", test)
        for route, missing in ROUTES.items()
    ]
    return [*offered, *(Row(route, REFUSED, reason, test) for route, reason in REFUSED_ROUTES.items())]


def field_rows() -> list[Row]:
    """Rows for the request fields of chats and completions."""
    test = "tests/gateway/requests/test_fields.py"
    works = [Row(name, WORKS, "", found) for name, found in FIELDS.items()]
    return [*works, *(Row(name, REFUSED, f"{field.why}.", test) for name, field in REFUSED_FIELDS.items())]


def value_rows() -> list[Row]:
    """Rows for the values that vLLM documents for flags with a fixed set of values."""
    fields = serve_fields()
    return [
        Row(f"--{flag} {name}", *_value(flag, name, fields.get(flag)), values.test)
        for flag, values in VALUES.items()
        for name in values.names
    ]


def _value(flag: str, name: str, field: OptionField | None) -> tuple[str, str]:
    """(status, reason) of a flag's value."""
    if field is None:
        answer = ANSWERS[flag]
        return (WORKS, "It is so anyway.") if name in answer.taken else (answer.kind, answer.said)
    choices, said = field.metadata["choices"], field.metadata["refused"]
    if not choices or name in choices:
        return WORKS, ""
    return REFUSED, said.get(name) or field.metadata["others"]


def capability_rows() -> list[Row]:
    """Rows for the capabilities that vLLM's documentation lists."""
    known = {row.name: row for row in (*flag_rows(), *route_rows())}
    return [
        _capability_row(f"{kind}: {name}", shown, known)
        for kind, names in CAPABILITIES.items()
        for name, shown in names.items()
    ]


def _capability_row(name: str, shown: str, known: Mapping[str, Row]) -> Row:
    """The row for a capability.

    Args:
        shown: the evidence; see quire.compatibility.capabilities.
    """
    status, is_said, reason = shown.partition(": ")
    if is_said and status in (REFUSED, NO_EFFECT):
        return Row(name, status, reason, "")
    if row := known.get(shown):
        return Row(name, row.status, f"By `{row.name}`. {row.reason}".strip(), row.test)
    return Row(name, WORKS, "", f"tests/{shown.replace('::', '::test_')}")


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
