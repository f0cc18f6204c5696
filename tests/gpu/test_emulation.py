"""GPU tests pass on an emulated GPU, in a separate process; `make test-emulated-gpu` runs all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA's own operations")

ROOT = Path(__file__).parents[2]
PLUGIN = "tests.support.emulated_gpu.plugin"
# Attention and recurrent states, with graphs and without, requested outputs, blocks from the host, and memory.
CHOSEN = (
    "test_a_start_takes_no_more_memory_than_reckoned[mamba2]", "test_engine[False-nemotron-h]",
    "test_no_step_waits_for_the_device[True-sampling]", "test_no_step_waits_for_the_device[True-host tier]",
)  # fmt: skip
# Only small steps with prompts have graphs, because each is computed twice to record it; and only the first test warms
# up, because nothing is compiled. Answers are short.
RUN = f"""
import sys
import {PLUGIN}
import pytest
from engine_svc.runner import runner
from msgspec.structs import replace

def pytest_collection_modifyitems(items):
    for item in items:
        item.module.NUM_TOKENS, item.module.SAMPLING = 3, replace(item.module.SAMPLING, max_tokens=3)

def pytest_runtest_teardown():
    runner.Runner.warm_up = lambda *_: None

runner.prompt_sizes = lambda *_: [12]
assert not pytest.main(["--numprocesses", "0", "-q", *sys.argv[1:]], plugins=[sys.modules["__main__"]])
"""

WRONG = {
    "tensors of both": ("torch.ones(3, device='cuda') + torch.ones(3)", "cuda:0 and cpu"),
    "a wait": ("torch.cuda.set_sync_debug_mode('error'); torch.ones(3, device='cuda').sum().item()", "host waits"),
    "a copy too early": (
        "a = torch.ones(3).pin_memory(); b = a.to('cuda', non_blocking=True); a.zero_(); torch.cuda.synchronize()",
        "before the device had read it",
    ),
    "a copy too late": (
        "a = torch.ones(3, device='cuda').to('cpu', non_blocking=True); assert not a.isnan().any(), 'not there yet'",
        "not there yet",
    ),
    "a wait in a graph": (
        "g = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g): torch.ones(3, device='cuda').cpu()",
        "when stream is capturing",
    ),
}


@pytest.mark.slow
def test_tests_of_a_gpu_pass_and_what_a_gpu_would_not_do_is_found_out() -> None:
    """All in one process: what it imports takes it longer than a test."""
    lines = [RUN, "import torch"]
    for name, (code, words) in WRONG.items():
        lines += [
            "try:", *(f"    {line}" for line in code.split("\n")), "except (RuntimeError, AssertionError) as error:",
            f"    assert {words!r} in str(error), error", f"else:\n    raise SystemExit({name!r})",
            "torch.cuda.set_sync_debug_mode('default')",
        ]  # fmt: skip
    command = [sys.executable, "-c", "\n".join(lines), *(f"tests/gpu/test_gpu.py::{name}" for name in CHOSEN)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert f"{len(CHOSEN)} passed" in result.stdout
