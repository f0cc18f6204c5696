"""Scores of what a server answers."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import transformers

from demo_model.corpus.example import Probe
from demo_model.evaluate import OfServer, answer, perplexity

FOLDER = Path(str(resources.files("demo_model"))) / "quire-demo"


class Completions(BaseHTTPRequestHandler):
    """Says each prompt's length; every token has a probability of one half."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (self.path, body["temperature"], body["add_special_tokens"]) == ("/v1/completions", 0, False)
        prompt: Any = body["prompt"]
        if isinstance(prompt[0], int):
            found = [None, *({str(token): {"logprob": math.log(0.5)}} for token in prompt[1:])]
            choices: list[dict[str, Any]] = [{"index": 0, "prompt_logprobs": found}]
        else:
            choices = [
                {"index": index, "text": f" {len(text)}", "finish_reason": ("stop", "length")[index % 2]}
                for index, text in enumerate(prompt)
            ]
        content = json.dumps({"choices": choices[::-1]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[OfServer]:
    with HTTPServer(("127.0.0.1", 0), Completions) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        answers = OfServer(f"http://127.0.0.1:{served.server_port}/v1")
        yield answers
        answers.close()
        served.shutdown()
        thread.join()


def test_answers_stand_beside_their_prompts(server: OfServer) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    some = [Probe(({"role": "user", "content": "x" * count},), lambda text: True) for count in range(1, 71)]
    found = list(answer(server, tokenizer, some))
    lengths = [int(text) for text, _ in found]
    assert lengths == list(range(lengths[0], lengths[0] + 70))
    assert [ended for _, ended in found[:4]] == [True, False, True, False]


def test_perplexity(server: OfServer) -> None:
    assert perplexity(server, transformers.AutoTokenizer.from_pretrained(FOLDER), 5) == pytest.approx(2.0)
