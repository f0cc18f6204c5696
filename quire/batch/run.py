"""`quire run-batch` from start to end."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import tqdm

from quire.batch.lines import BatchInput, BatchResult, read_input
from quire.batch.results import Results
from quire.batch.sending import BatchSender
from quire.batch.transfer import fetch, file_name, is_address, send, shown
from quire.errors import StartupError
from quire.options.batch import BatchOptions
from quire.options.gateway import GatewayOptions
from quire.serve.ports import api_url, free_ports
from quire.serve.stack import run_stack

_GRACE_SECONDS = 60.0


def main(batch: BatchOptions, **groups: Any) -> None:
    """Answers all requests of a file, and ends.

    Raises:
        StartupError: the input or output is unusable, or the stack cannot start or continue.
    """
    for name in ("input_file", "output_file"):
        if not getattr(batch, name):
            raise StartupError(f"--{name.replace('_', '-')} is missing: quire run-batch -i INPUT -o OUTPUT MODEL.")
    _check_apart(batch)
    output, partial = _places(batch)
    with _local_input(batch, partial.parent) as path:
        requests = read_input(path)
        gateway = _gateway(groups["gateway"], batch)
        with Results(partial, requests) as results:
            if results.missing:
                _answer(batch, requests, results, {**groups, "gateway": gateway})
            results.write(output)
            if is_address(batch.output_file):
                send(output, batch.output_file)
                output.unlink()
            results.remove()
    click.echo(f"{len(requests)} answers are in {shown(batch.output_file)}.")


def _check_apart(batch: BatchOptions) -> None:
    """Checks that input and output differ.

    Raises:
        StartupError: the answers would overwrite the requests.
    """
    is_one = batch.input_file == batch.output_file
    with contextlib.suppress(OSError):  # one does not exist yet, or is not local
        is_one = is_one or Path(batch.input_file).expanduser().samefile(Path(batch.output_file).expanduser())
    if is_one:
        raise StartupError(
            f"--input-file {shown(batch.input_file)} and --output-file {shown(batch.output_file)} are the same file, "
            "so the answers would overwrite the requests: choose another output."
        )


def _places(batch: BatchOptions) -> tuple[Path, Path]:
    """Paths of the complete output, and of the answers so far."""
    folder = Path(batch.output_tmp_dir).expanduser() if batch.output_tmp_dir else None
    if is_address(batch.output_file):
        output = (folder or Path(tempfile.gettempdir())) / f"quire-batch-{file_name(batch.output_file)}"
    else:
        output = Path(batch.output_file).expanduser()
        if output.is_dir() or not output.absolute().parent.is_dir():
            raise StartupError(f"--output-file {output} must be a file in an existing folder.")
    return output, (folder or output.parent) / f"{output.name}.partial"


@contextlib.contextmanager
def _local_input(batch: BatchOptions, folder: Path) -> Iterator[Path]:
    """Path of the input; a downloaded one is deleted after the context, as each run downloads it again."""
    if not is_address(batch.input_file):
        yield Path(batch.input_file).expanduser()
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"quire-batch-{file_name(batch.input_file)}"
    try:
        fetch(batch.input_file, path)
        yield path
    finally:
        path.unlink(missing_ok=True)


def _gateway(options: GatewayOptions, batch: BatchOptions) -> GatewayOptions:
    """The gateway's options: it serves nobody else, unless metrics are wanted."""
    if options.uds:
        raise StartupError("A batch has no clients: leave --uds out. --enable-metrics serves the metrics on --port.")
    if options.api_key_file and not options.api_key:  # the file may hold hashes only, and its limits are for others
        options = dataclasses.replace(options, api_key=(secrets.token_hex(32),))
    if batch.enable_metrics:
        return dataclasses.replace(options, host=batch.url)
    return dataclasses.replace(options, host="127.0.0.1", port=free_ports(1)[0])


def _answer(batch: BatchOptions, requests: BatchInput, results: Results, groups: dict[str, Any]) -> None:
    """Starts a stack and has it answer the missing requests."""
    gateway: GatewayOptions = groups["gateway"]
    headers = {"authorization": f"Bearer {gateway.api_key[0]}"} if gateway.api_key else {}
    most = min(batch.max_concurrent_requests, len(results.missing))

    async def work() -> None:
        failures = 0
        with tqdm.tqdm(
            total=len(requests), initial=len(results), unit="request", file=sys.stderr, mininterval=_interval()
        ) as bar:

            def tell(result: BatchResult) -> None:
                nonlocal failures
                failures += result.error is not None
                bar.set_postfix(failed=failures, refresh=False)
                bar.update()

            async with httpx.AsyncClient(
                base_url=api_url(gateway), headers=headers, verify=not gateway.ssl_certfile,
                timeout=httpx.Timeout(30.0, read=gateway.request_timeout_seconds + _GRACE_SECONDS, pool=None),
                limits=httpx.Limits(max_connections=most),
            ) as client:  # fmt: skip
                await BatchSender(client, most, tell).run(requests, results)

    if not run_stack(work, **groups):
        raise StartupError(
            f"The batch was stopped: {len(results)} of {len(requests)} requests have been answered. Run the same "
            "command again to continue."
        )


def _interval() -> float:
    """Seconds between two updates of the progress bar: a log needs fewer."""
    return 0.2 if sys.stderr.isatty() else 10.0
