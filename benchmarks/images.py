"""Prompts with images through HTTP, against vLLM: `python -m benchmarks.images [--peer VENV]`.

The model has the image encoder of Qwen2.5-VL 3B and a text model about as large as Qwen3-0.6B, with random weights in
bfloat16. The servers take turns. vLLM needs torchvision in its environment.
"""

from __future__ import annotations

import argparse
import base64
import concurrent.futures
import http.client
import io
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.machine import heading
from benchmarks.models import byte_tokenizer
from benchmarks.servers import Server, quire, running, vllm

_SIDE = 448  # pixels; 256 tokens
_OUTPUT = 16
_TEXT = "What can be seen in this picture, and what is it for?"
_SPECIAL = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(folder: Path) -> None:
    """Writes the model; does nothing if it is there already."""
    if (folder / "preprocessor_config.json").exists():
        return
    import torch
    import transformers

    tokenizer = byte_tokenizer(32000)
    tokenizer.add_special_tokens({"additional_special_tokens": list(_SPECIAL)})
    tokenizer.chat_template = _TEMPLATE
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(_SPECIAL))
    text = {
        "vocab_size": 32768, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 32768,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
        "bos_token_id": None, "eos_token_id": 257, "pad_token_id": None,
    }  # fmt: skip
    vision = {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 1024,
        "fullatt_block_indexes": [7, 15, 23, 31], "window_size": 112,
    }  # fmt: skip
    config = transformers.Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, image_token_id=image, video_token_id=video, vision_start_token_id=start,
        vision_end_token_id=end, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    transformers.Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor = {"processor_class": "Qwen2_5_VLProcessor", "image_processor_type": "Qwen2VLImageProcessor"}
    pixels = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor | pixels))


def _request(image: bytes) -> bytes:
    url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": _TEXT}]
    return json.dumps(
        {"model": "bench", "messages": [{"role": "user", "content": content}], "max_tokens": _OUTPUT, "stream": True,
         "temperature": 0, "ignore_eos": True}
    ).encode()  # fmt: skip


def _image(seed: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (_SIDE // 8, _SIDE // 8, 3), np.uint8)
    Image.fromarray(pixels).resize((_SIDE, _SIDE)).save(file, "PNG")
    return file.getvalue()


def _first_token(port: int, body: bytes) -> float:
    """Milliseconds to the first token of an answer, which is read to its end.

    Raises:
        RuntimeError: the answer is an error.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        begin, first = time.perf_counter(), 0.0
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {answer.read()[:500]!r}")
        for line in answer:
            if not first and b'"content":"' in line.replace(b'"content":""', b""):
                first = time.perf_counter() - begin
        return first * 1e3
    finally:
        connection.close()


@dataclass(frozen=True)
class Measure:
    """One figure of one server in one round."""

    figure: str
    server: str
    value: float


def measure(server: Server, seed: int, count: int) -> Iterator[Measure]:
    """Starts the server, sends images that it has not seen, and stops it."""
    with tempfile.TemporaryDirectory() as folder, running(server, Path(folder) / "server.log"):
        bodies = [_request(_image(seed + number)) for number in range(2 * count + 2)]
        for body in bodies[:2]:
            _first_token(server.port, body)  # warm
        alone, together = bodies[2 : count + 2], bodies[count + 2 :]
        firsts = [_first_token(server.port, body) for body in alone]
        yield Measure("TTFT of a new image, ms", server.name, statistics.median(firsts))
        again = [_first_token(server.port, body) for body in alone]
        yield Measure("TTFT of the same conversation again, ms", server.name, statistics.median(again))
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda body: _first_token(server.port, body), together))
        yield Measure("requests/s with new images, 4 streams", server.name, count / (time.perf_counter() - begin))


def report(measures: Sequence[Measure]) -> str:
    """A table of the medians, with all rounds."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in measures:
        found[each.figure][each.server].append(each.value)
    names = list(dict.fromkeys(each.server for each in measures))
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for figure, by_server in found.items():
        cells = [
            f"{statistics.median(values):.4g} ({', '.join(f'{value:.4g}' for value in values)})" if values else ""
            for values in (by_server[name] for name in names)
        ]
        lines.append(f"| {figure} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="virtual environment with vLLM and torchvision")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "quire-bench-images")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--images", type=int, default=8, help="in each part of a round")
    parser.add_argument("--port", type=int, default=8170)
    arguments = parser.parse_args()
    build(arguments.folder)
    print(heading(), flush=True)
    limits = ("--max-model-len", "4096", "--dtype", "bfloat16")
    servers = [quire("Quire", arguments.folder, arguments.port, [*limits, "--kv-cache-memory-bytes", str(2 * 2**30)])]
    if arguments.peer:
        unprofiled = (*limits, "--skip-mm-profiling")  # with images of 12 megapixels, which take a CPU minutes
        servers.append(vllm(arguments.peer, arguments.folder, arguments.port + 50, unprofiled, 2))
    measures = [
        found
        for number in range(arguments.rounds)
        for server in servers
        for found in measure(server, 1000 * number, arguments.images)
    ]
    print(report(measures))


if __name__ == "__main__":
    main()
