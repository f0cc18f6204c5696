"""Settings needed before torch and triton are imported and before any stack is started."""

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
from hypothesis.internal.conjecture import providers

from quire.collection import without_collection

# How long a hypothesis example takes depends more on the machine's other load than on the code.
hypothesis.settings.register_profile("quire", deadline=None)
hypothesis.settings.load_profile("quire")
# Hypothesis would read all of Quire's modules for constants to try in its examples: three seconds of each worker, for
# thousands that have nothing to do with what a test draws.
providers._get_local_constants = lambda: providers._local_constants

# Hundreds of processes import the same files: compile them once, even in containers that disable bytecode.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Without a GPU, Triton kernels run in Triton's interpreter.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# As in an engine's process (engine_svc/__init__.py), also where a test file imports torch first: idle threads sleep and
# leave the cores to the tests running in parallel.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# With one thread per core each, parallel processes would spend their time waiting for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell's background jobs ignore Ctrl-C, and nohup ignores hangups. Keep ignoring them here, but let started processes
# react to the signals that tests stop them by: unlike SIG_IGN, a handler is not inherited.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps stacks' log files out of the developer's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


_SLOW = re.compile(rb"\bmark\.slow\b")
_ALL_SLOW = re.compile(rb"^pytestmark = .*\bmark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips files without tests of the current stage, which every xdist worker would otherwise import."""
    chosen = config.getoption("markexpr")
    is_named = any(Path(argument.partition("::")[0]).resolve() == collection_path for argument in config.args)
    if is_named or collection_path.suffix != ".py" or chosen not in ("slow", "not slow"):
        return None
    text = collection_path.read_bytes()
    has_some = _SLOW.search(text) if chosen == "slow" else not _ALL_SLOW.search(text)
    return None if has_some else True


# Tests in these folders share something slow to start through their conftest.py: a stack, a trained tokenizer.
_SHARING = ("tests/demo_model/", "tests/gateway/", "tests/integration/")
# These two share the tokenizer, which takes five seconds to train.
_TOGETHER = ("tests/demo_model/test_corpus.py", "tests/demo_model/test_training.py")
# Tests in other folders share something through a fixture in their own file: clients' stacks, an executor's ranks.
_SHARES = re.compile(rb"scope=\"module\"")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadscope, distributes single tests, or whole files where tests share something slow to start."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    @functools.cache
    def is_shared(file: str) -> bool:
        return file.startswith(_SHARING) or bool(_SHARES.search((config.rootpath / file).read_bytes()))

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file in _TOGETHER:
                return _TOGETHER[0]
            return file if is_shared(file) else nodeid

    return Scheduling(config, log)


@atexit.register
def _end() -> None:
    """Runs after pytest's last checks. An xdist worker, whose status nobody reads, ends at once: freeing all tests and
    modules takes seconds. Another process must free everything, or Triton's bindings report leaks.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(0)
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects tests without garbage collection, which takes as long again, and spares later ones these objects."""
    with without_collection():
        return (yield)
