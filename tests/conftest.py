"""What must be set before torch and triton are imported, and before any stack is started."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import re
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from quire.collection import without_collection

# How long an example takes says more of what else the machine does than of the code.
hypothesis.settings.register_profile("quire", deadline=None)
hypothesis.settings.load_profile("quire")

# Hundreds of processes import the same files: they are compiled once, also where containers ask for none of it.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Without a GPU, Triton kernels run in Triton's interpreter.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# As in an engine's process (engine_svc/__init__.py), also where a test's file imports torch first: threads that have
# nothing to do sleep, and leave the cores to the tests beside.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Beside each other, processes with a thread for each core spend their time waiting for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# In the background a shell has Ctrl-C ignored, and nohup has hangups: go on so, but start no process that is deaf to
# what tests stop it by. A handler is not inherited.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Log files of stacks stay out of the developer's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


_SLOW = re.compile(rb"\bmark\.slow\b")
_ALL_SLOW = re.compile(rb"^pytestmark = .*\bmark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that have no test of the stage that runs are not imported: each of its processes would import them all."""
    chosen = config.getoption("markexpr")
    is_named = any(Path(argument.partition("::")[0]).resolve() == collection_path for argument in config.args)
    if is_named or collection_path.suffix != ".py" or chosen not in ("slow", "not slow"):
        return None
    text = collection_path.read_bytes()
    has_some = _SLOW.search(text) if chosen == "slow" else not _ALL_SLOW.search(text)
    return None if has_some else True


# Whose tests share what takes seconds to start, by their folder's conftest.py: a stack, a tokenizer that was trained.
_SHARING = ("tests/demo_model/", "tests/gateway/", "tests/integration/")
# Or by their own file: clients' stacks, an executor's ranks.
_SHARES = re.compile(rb"scope=\"module\"")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadscope, a process gets one test after the other, or a whole file where those share something:
    every other process would start it again."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    @functools.cache
    def is_shared(file: str) -> bool:
        return file.startswith(_SHARING) or bool(_SHARES.search((config.rootpath / file).read_bytes()))

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if is_shared(file) else nodeid

    return Scheduling(config, log)


# Behind pytest's last looks: the interpreter takes its leave of all of it, or Triton's bindings call it leaked.
atexit.register(gc.unfreeze)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """To look for garbage among all that is imported and listed takes as long as the rest of it; so does each look
    later on."""
    with without_collection():
        return (yield)
