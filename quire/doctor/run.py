"""Runs all checks and prints the findings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import click

from quire.doctor.finding import Finding, Grade, fine, problem
from quire.doctor.machine import compiler, gpus, limits, processors
from quire.doctor.model import model
from quire.errors import StartupError
from quire.serve.devices import show_devices
from quire.serve.layout import StackOptions, choose_layout, with_derived
from quire.serve.ports import HeldPorts, api_url

_COLORS = {Grade.FINE: "green", Grade.WARNING: "yellow", Grade.PROBLEM: "red"}


def main(**groups: Any) -> None:
    """Prints what `quire serve` would run into with these options. Exits with status 1 if it would not start."""
    options = StackOptions(**groups)
    findings = list(examine(options))
    for finding in findings:
        click.echo(f"{click.style(f'{finding.grade:8}', fg=_COLORS[finding.grade])} {finding.subject}: {finding.text}")
    problems = sum(finding.grade is Grade.PROBLEM for finding in findings)
    warnings = sum(finding.grade is Grade.WARNING for finding in findings)
    click.echo(f"{problems} problem{'s' * (problems != 1)}, {warnings} warning{'s' * (warnings != 1)}.")
    sys.exit(1 if problems else 0)


def examine(options: StackOptions) -> Iterator[Finding]:
    """Runs all checks; one that fails does not keep others from running."""
    checks: Sequence[tuple[str, Callable[[], Iterable[Finding]]]] = (
        ("system", processors),
        ("options", lambda: _options(options)),
        ("ports", lambda: _ports(options)),
        ("model", lambda: model(options)),
        ("GPU", lambda: gpus(options)),
        ("compiler", lambda: compiler(options)),
        ("limits", lambda: limits(options)),
    )
    for subject, check in checks:
        try:
            yield from check()
        except (StartupError, OSError) as error:
            yield problem(subject, str(error))


def _options(options: StackOptions) -> Iterator[Finding]:
    """Checks that the options are consistent.

    Raises:
        StartupError: some are not.
    """
    with_derived(options)
    show_devices(options.serve.device_ids, os.environ)
    options.engine.lora.check()
    yield fine("options", "consistent, as far as can be checked before startup")


def _ports(options: StackOptions) -> Iterator[Finding]:
    """Checks that the ports are free.

    Raises:
        StartupError: one is taken, or options are for services that are not started.
    """
    with HeldPorts() as ports:
        ports.hold_api(options.gateway)
        choose_layout(options, ports)
    yield fine("ports", f"{api_url(options.gateway)} is free")
