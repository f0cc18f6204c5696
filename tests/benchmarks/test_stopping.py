"""A benchmark's servers end with it, however it ends; a small HTTP server stands in for vLLM and similar servers."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import eventually_now

# Prints its process id, and answers with the given status until it is told to end, which it also prints.
SERVER = """
import http.server, os, signal, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(int(sys.argv[1]))
        self.end_headers()

def end(number, frame):  # wherever it is: an exception could be lost in a finalizer
    os.write(1, b"told\\n")
    os._exit(0)

port = int(sys.argv[sys.argv.index("--port") + 1])
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
print(os.getpid(), flush=True)
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
# Ctrl-C is handled as in a terminal, wherever the tests run.
COMPARISON = """
import signal, sys, time
from pathlib import Path
from benchmarks.servers import Server, running
from quire.serve.ports import free_ports

signal.signal(signal.SIGINT, signal.default_int_handler)
code, status, log = sys.argv[1:]
port = free_ports(1)[0]
server = Server("stand-in", [sys.executable, "-c", code, status, "--port", str(port)], {}, port)
with running(server, Path(log)):
    print("answers", flush=True)
    time.sleep(600)
"""
FLEET = """
import signal, sys, time
from pathlib import Path
from benchmarks import fleet

signal.signal(signal.SIGINT, signal.default_int_handler)
code, status, log = sys.argv[1:]
fleet._LOGS = Path(log).parent
with fleet.service(Path(log).stem, [sys.executable, "-c", code, status]):
    print("answers", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow  # starts processes
@pytest.mark.parametrize("status", ["200", "503"])  # a server that answers, and one that is still starting
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("program", [COMPARISON, FLEET], ids=["comparison", "fleet"])
def test_a_benchmark_that_is_ended_ends_its_server(
    program: str, number: signal.Signals, status: str, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    with subprocess.Popen(
        [sys.executable, "-c", program, SERVER, status, str(log)], stdout=subprocess.PIPE, text=True
    ) as benchmark:
        if status == "200":
            assert benchmark.stdout is not None
            assert benchmark.stdout.readline() == "answers\n"
        eventually_now(lambda: log.exists() and "\n" in log.read_text(), "the server does not start")
        benchmark.send_signal(number)
        assert benchmark.wait(60) != 0
    pid = int(log.read_text().split()[0])
    assert not Path(f"/proc/{pid}").exists()
    assert "told" in log.read_text()
