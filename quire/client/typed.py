"""Interactive input, with a history across lines and sessions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import click

_MOST_LINES = 1000


def history_file() -> Path:
    """Path of the history of earlier sessions."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "quire" / "history"


@contextlib.contextmanager
def kept_history(file: Path) -> Iterator[None]:
    """Lets the arrow keys recall lines, including those of earlier sessions; does nothing without readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        readline.set_history_length(_MOST_LINES)
        with contextlib.suppress(OSError):  # on a read-only system no history is kept
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))  # prompts are private
            readline.write_history_file(file)


def typed_lines() -> Iterator[str]:
    """Yields what the user types, until end of file; triple quotes enclose multi-line text, Ctrl-C drops a line."""
    while True:
        try:
            line = _typed()
        except KeyboardInterrupt:
            click.echo("\n(Press Ctrl-D to exit.)", err=True)
        except EOFError:
            click.echo(err=True)
            return
        else:
            if line.strip():
                yield line


def _typed() -> str:
    line = input("> ")
    if not line.startswith('"""'):
        return line
    lines = [line[3:]]
    while not lines[-1].endswith('"""'):
        lines.append(input(". "))
    return "\n".join(lines)[:-3]
