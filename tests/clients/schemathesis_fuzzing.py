"""`schemathesis` over `/openapi.json`: what the document says is what the server does, and nothing is a 5xx.

Requests that the document allows may be refused all the same: what a model has room for, and which fields go together,
it does not say. So the one check that is left out is that all of them are accepted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LEFT_OUT = (
    "--exclude-checks", "positive_data_acceptance", "--exclude-path", "/invocations",  # which is two others
    "--exclude-path-regex", "/inference/|render$",  # which are off
)  # fmt: skip
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
EXAMPLES = 5  # of each operation, beside those that cover its schema systematically

if __name__ == "__main__":
    address = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIGURATION),
        "run", f"{address}/openapi.json", "--checks", "all", *LEFT_OUT, "--phases", "coverage,fuzzing",
        "--max-examples", str(EXAMPLES), "--seed", "1", "--no-shrink", "--continue-on-failure",
        "--request-timeout", "60", "--no-color",
    ]  # fmt: skip
    sys.exit(subprocess.run(command, check=False).returncode)
