"""Servers under comparison: starts them, times their startup, measures their memory, and stops all their processes."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.stopping import stop, unwinding

START_SECONDS = 600.0
# Levels of --cpu-kernels as ONEDNN_MAX_CPU_ISA names them.
ONEDNN_LEVELS: Mapping[str, str] = MappingProxyType(
    {
        "avx2": "AVX2",
        "avx512": "AVX512_CORE",
        "avx512_vnni": "AVX512_CORE_VNNI",
        "avx512_bf16": "AVX512_CORE_BF16",
        "amx": "AVX512_CORE_AMX",
    }
)


@dataclass(frozen=True)
class Server:
    """How to start a server."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    port: int


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    process: subprocess.Popen[bytes]
    start_seconds: float  # until its first token

    def resident_bytes(self) -> int:
        """Memory of the server and all its child processes, with shared pages counted once (PSS)."""
        return sum(_pss(pid) for pid in family(self.process.pid))


def quire(name: str, model: Path, port: int, arguments: Sequence[str]) -> Server:
    """Quire's whole stack."""
    command = [sys.executable, "-m", "quire", "serve", str(model), "--port", str(port), "--served-model-name", "bench"]
    return Server(name, [*command, *arguments], {}, port)


def vllm(
    virtual_environment: Path, model: Path, port: int, arguments: Sequence[str], kv_cache_gib: int, level: str = "auto"
) -> Server:
    """vLLM's CPU build from its own virtual environment, bound to all cores, with the allocator that it recommends.

    Args:
        level: instruction level, as in --cpu-kernels, to which oneDNN's products, which vLLM uses, are limited.
    """
    preload = [*Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"), virtual_environment / "lib" / "libiomp5.so"]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "LD_PRELOAD": ":".join(str(path) for path in preload if path.exists()),
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    }  # fmt: skip
    if level != "auto":
        environment["ONEDNN_MAX_CPU_ISA"] = ONEDNN_LEVELS[level]
    command = [str(virtual_environment / "bin" / "vllm"), "serve", str(model), "--port", str(port)]
    name = "vLLM" if level == "auto" else f"vLLM {level}"
    return Server(name, [*command, "--served-model-name", "bench", *arguments], environment, port)


def llama(virtual_environment: Path, model: Path, port: int, form: str, streams: int, context: int) -> Server:
    """llama.cpp's own server, with `streams` parallel slots.

    Args:
        form: see `gguf_file`.
        context: tokens of each stream.
    """
    command = [
        str(virtual_environment / "bin" / "llama-server"), "--model", str(gguf_file(virtual_environment, model, form)),
        "--alias", "bench",
        "--port", str(port), "--parallel", str(streams), "--ctx-size", str(streams * context), "--threads",
        str(os.cpu_count()), "--no-webui",
    ]  # fmt: skip
    return Server(f"llama.cpp {form}", command, {}, port)


def gguf_file(virtual_environment: Path, model: Path, form: str) -> Path:
    """The model as a GGUF file, made once in the model's folder.

    Args:
        form: of its weights: BF16, Q8_0 or Q4_K_M.
    """
    target = model / f"{form}.gguf"
    if not target.exists():
        converter = Path(__file__).parent / "gguf_model.py"
        command = [str(virtual_environment / "bin" / "python"), str(converter), str(model), str(target), "--type", form]
        subprocess.run(command, check=True)
    return target


def answers(port: int) -> bool:
    """Whether the server at a port completes a prompt."""
    body = json.dumps({"model": "bench", "prompt": "abc", "max_tokens": 1, "ignore_eos": True})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def running(
    server: Server, log: Path, answers: Callable[[int], bool] = answers, seconds: float = START_SECONDS
) -> Iterator[Running]:
    """Starts the server, waits for its first answer, stops it at the end.

    Args:
        answers: tells whether the server at a port answers.
        seconds: time limit for the first answer.

    Raises:
        RuntimeError: the server ends before it answers, or takes too long.
    """
    begin = time.monotonic()
    with log.open("wb") as output, unwinding():
        process = subprocess.Popen(
            server.command, env=os.environ | dict(server.environment), stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            while not answers(server.port):
                if process.poll() is not None or time.monotonic() - begin > seconds:
                    raise RuntimeError(f"{server.name} did not start: {log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.05)
            yield Running(process, time.monotonic() - begin)
        finally:
            stop(process)


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children = [child for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]
    return [pid, *(found for child in children for found in family(int(child)))]


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
