"""`quire serve`: the local stack from start to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click

import quire
from quire.errors import StartupError
from quire.log import setup_logging
from quire.model_folder import check_path
from quire.serve.console import Console
from quire.serve.control import control_socket
from quire.serve.devices import show_devices
from quire.serve.layout import Layout, StackOptions, choose_layout, with_derived
from quire.serve.log_file import LogFile, choose_log_file
from quire.serve.ports import HeldPorts
from quire.serve.processes import process_specs
from quire.serve.supervisor import Supervisor
from quire.supervised import Report, Stage

_REFRESH_SECONDS = 0.2


# Work to do with a stack once it is ready.
Work = Callable[[], Coroutine[Any, Any, None]]


def main(**groups: Any) -> None:
    """Starts the stack and supervises it until Ctrl-C.

    Raises:
        StartupError: the stack cannot start, or a service dies again and again.
    """
    run_stack(None, **groups)


def run_stack(work: Work | None, **groups: Any) -> bool:
    """Starts the stack and supervises it until Ctrl-C, or until the work is done.

    Returns:
        Whether the work is done.

    Raises:
        StartupError: see `main`.
    """
    options = with_derived(StackOptions(**groups))
    show_devices(options.serve.device_ids, os.environ)
    for place in (options.model.model, options.model.tokenizer):
        check_path(place or "")
    with HeldPorts() as ports:
        if not options.ranks.headless:
            ports.hold_api(options.gateway)
            if admin_port := options.gateway.admin.admin_port:
                ports.hold(options.gateway.admin.admin_host, admin_port, "--admin-port")
        elif work:
            raise StartupError("A --headless node has no API, which this command needs. Leave out --headless.")
        layout = choose_layout(options, ports)
        log_file = choose_log_file(options.log, _stack_name(options, layout))
        log = dataclasses.replace(options.log, log_file=str(log_file.path) if log_file else "-")
        is_done = asyncio.run(_serve(dataclasses.replace(options, log=log), layout, ports, log_file, work))
        if is_done and work and log_file and options.log.log_file is None:
            log_file.remove()  # its port will hardly recur, so these files would pile up
        return is_done


async def _serve(
    options: StackOptions, layout: Layout, ports: HeldPorts, log_file: LogFile | None, work: Work | None
) -> bool:
    return await _Stack(options, layout, ports, log_file).run(work)


class _Stack:
    """A running stack, inside its event loop."""

    def __init__(self, options: StackOptions, layout: Layout, ports: HeldPorts, log_file: LogFile | None) -> None:
        self._options = options
        self._layout = layout
        self._log_file = log_file
        self._specs = process_specs(options, layout)
        self._missing = {spec.name: Report(spec.name, Stage.STARTING) for spec in self._specs}  # services not ready yet
        self._console = Console(sys.stderr, self._missing.values(), live=sys.stderr.isatty())
        setup_logging("serve", options.log, terminal=self._console)
        advice = "See its output above." if log_file is None else f"See {log_file.path}."
        self._supervisor = Supervisor(lambda line: self._console.write(f"{line}\n"), self._heed, advice)
        self._ports = ports
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def _heed(self, report: Report) -> None:
        self._console.report(report)
        if report.stage is Stage.READY:
            self._missing.pop(report.name, None)
        elif report.name in self._missing:
            self._missing[report.name] = report
        if not self._missing:
            self._ready.set()

    def _signalled(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    async def run(self, work: Work | None) -> bool:
        """Starts the stack, serves and stops; see `run_stack`."""
        is_done = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # SIGHUP: terminal closed
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
                asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        keeping = asyncio.create_task(self._keep_house())
        try:
            if await self._start():
                from quire.serve.elastic import ElasticStack  # imported late: gRPC clients are slow to import

                elastic = ElasticStack(self._options, self._layout, self._ports, self._supervisor)
                async with control_socket(self._supervisor.control_path, elastic.answer):
                    is_done = await self._carry_out(work) if work else await self._until(self._stop)
        except StartupError:
            self._hurry.set()
            raise
        finally:
            self._console.close()
            if not self._hurry.is_set():
                self._console.write(_stopping(self._options.gateway.stop_seconds))
            # First the gateways' clients finish, then those that call the router directly.
            await self._supervisor.stop(
                (self._layout.gateways, ("router",)), self._options.gateway.stop_seconds, self._hurry
            )
            keeping.cancel()
        return is_done

    async def _carry_out(self, work: Work) -> bool:
        """Does the work; returns whether it was finished, which it is not if the stack is told to stop first."""
        done = asyncio.Event()
        task = asyncio.create_task(work())
        task.add_done_callback(lambda task: done.set())
        try:
            await self._until(done)
        finally:
            task.cancel()
            results = await asyncio.gather(task, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]
        return results[0] is None

    async def _start(self) -> bool:
        """Starts everything and prints the summary; returns False if it was told to stop before that."""
        start = time.monotonic()
        self._console.write(f"Quire {quire.__version__} is starting {self._options.model.served_names[0]}\n")
        try:
            async with asyncio.timeout(self._options.serve.startup_timeout_seconds):
                self._supervisor.start(self._specs)
                await self._until(self._ready)
        except TimeoutError as error:
            missing = ", ".join(f"{name} ({report.message or report.stage})" for name, report in self._missing.items())
            raise StartupError(
                f"Not ready after {self._options.serve.startup_timeout_seconds:g} s: {missing}. Increase "
                "--startup-timeout-seconds."
            ) from error
        if self._stop.is_set():
            return False
        if not self._layout.ranks.node_rank:  # its only process goes on by itself for as long as that makes sense
            self._supervisor.settle()
        self._console.close()
        from quire.serve.ready import node_summary, summary  # imported late, like elastic

        say = node_summary if self._layout.ranks.headless else summary
        click.echo(await say(self._options, self._layout, time.monotonic() - start))
        return True

    async def _until(self, event: asyncio.Event) -> bool:
        """Waits for an event, or for the signal to stop; returns whether the event occurred.

        Raises:
            StartupError: a service has failed for good.
        """
        waiting: list[asyncio.Future[Any]] = [asyncio.create_task(each.wait()) for each in (event, self._stop)]
        try:
            await asyncio.wait([*waiting, self._supervisor.failed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        if self._supervisor.failed.done():
            self._supervisor.failed.result()
        return event.is_set()

    async def _keep_house(self) -> None:
        while True:
            self._console.refresh()
            if self._log_file:
                self._log_file.rotate()
            await asyncio.sleep(_REFRESH_SECONDS)


def _stopping(seconds: float) -> str:
    return f"Stopping… Running requests have {seconds:g} s to finish; a second Ctrl-C ends them at once.\n"


def _stack_name(options: StackOptions, layout: Layout) -> str:
    """A name that distinguishes this stack from others on this machine."""
    if layout.ranks.node_rank:
        return f"node-{layout.ranks.node_rank}"
    if layout.ranks.headless:
        return f"rank-{layout.ranks.ranks[0]}"
    return Path(options.gateway.uds).name if options.gateway.uds else str(options.gateway.port)
