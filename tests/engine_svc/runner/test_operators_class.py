"""The operator's own classes in place of the runner, and in front of it."""

from __future__ import annotations

import pytest

from engine_svc.runner.operators_class import runner_class
from engine_svc.runner.runner import Runner
from quire.errors import StartupError
from quire.options.executor import ExecutorOptions

HERE = __name__


class Own(Runner):
    def name(self) -> str:
        return "own"


class Extension:
    def name(self) -> str:
        return f"extended {super().name()}"  # type: ignore[misc]


class WithInit:
    def __init__(self) -> None: ...


def not_a_class() -> None: ...


def test_the_runner_is_quires_unless_options_name_another() -> None:
    assert runner_class(ExecutorOptions()) is Runner
    assert runner_class(ExecutorOptions(worker_cls=f"{HERE}.Own")) is Own


def test_an_extension_stands_before_either() -> None:
    extended = runner_class(ExecutorOptions(worker_extension_cls=f"{HERE}:Extension"))
    assert extended.__mro__[1:3] == (Extension, Runner)
    both = runner_class(ExecutorOptions(worker_cls=f"{HERE}.Own", worker_extension_cls=f"{HERE}.Extension"))
    assert both.__new__(both).name() == "extended own"


@pytest.mark.parametrize(
    ("worker", "extension", "why"),
    [
        ("Own", "", "--worker-cls Own: 'Own' has no module"),
        ("no.such.Class", "", "--worker-cls no.such.Class: no.such cannot be imported"),
        (f"{HERE}.not_a_class", "", "is not a class"),
        (f"{HERE}.Extension", "", "is not a class derived from engine_svc.runner.runner.Runner"),
        ("auto", f"{HERE}.Missing", "--worker-extension-cls .*Missing is not a class"),
        ("auto", f"{HERE}.Own", "derives from Runner"),
        ("auto", f"{HERE}.WithInit", "has an __init__ of its own"),
        ("auto", "builtins.bool", "--worker-extension-cls builtins.bool: "),
    ],
)
def test_what_cannot_be_taken_is_refused_before_anything_is_loaded(worker: str, extension: str, why: str) -> None:
    with pytest.raises(StartupError, match=why):
        runner_class(ExecutorOptions(worker_cls=worker, worker_extension_cls=extension))
