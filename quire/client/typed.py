"""What people type at a prompt, over lines and sessions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import click

_MOST_LINES = 1000


def history_file() -> Path:
    """Where the lines of earlier sessions are."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "quire" / "history"


@contextlib.contextmanager
def kept_history(file: Path) -> Iterator[None]:
    """Has the arrow keys bring lines back, those of earlier sessions too; in a terminal without readline nothing."""
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
        with contextlib.suppress(OSError):  # on a read-only system there is none
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))  # what people ask is theirs
            readline.write_history_file(file)


def typed_lines() -> Iterator[str]:
    """What the user types, until end of file; triple quotes enclose text of many lines, Ctrl-C drops a line."""
    while True:
        try:
            line = _typed()
        except KeyboardInterrupt:
            click.echo("\n(Ctrl-D ends.)", err=True)
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
