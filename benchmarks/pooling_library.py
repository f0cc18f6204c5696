"""sentence-transformers as a peer of `benchmarks.pooling`: a process that encodes the texts it reads from stdin.

Each input line is `{"texts": [...], "batch": n}`, and each output line the seconds that encoding took; a first line is
written once the model has encoded a text. The library gets all texts of a load at once, which is fastest for it, or one
text after the other if the load has single-text requests.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
from sentence_transformers import SentenceTransformer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    options = {"torch_dtype": getattr(torch, arguments.dtype)}
    model = SentenceTransformer(arguments.model, device="cpu", model_kwargs=options)
    model.encode(["ready"])
    print("0", flush=True)
    for line in sys.stdin:
        load = json.loads(line)
        start = time.perf_counter()
        if load["batch"] == 1:
            for text in load["texts"]:
                model.encode([text])
        else:
            model.encode(load["texts"], batch_size=load["batch"])
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
