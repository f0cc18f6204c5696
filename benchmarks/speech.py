"""Recordings through HTTP by Whisper, against the Transformers library in one process: `python -m benchmarks.speech`.

The model has the shape of whisper-small, with random weights in bfloat16. Both take turns.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import io
import json
import statistics
import tempfile
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.images import Measure, report
from benchmarks.machine import heading
from benchmarks.models import byte_tokenizer
from benchmarks.servers import Server, quire, running

_RATE, _SECONDS, _OUTPUT, _TOGETHER = 16_000, 30, 100, 8
_SPECIAL = (
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>",
    "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
)  # fmt: skip
_ONE, _SAME, _MANY = "one recording, s", "the same recording again, s", f"{_TOGETHER} recordings at once, s"


def build(folder: Path) -> None:
    """Writes the model; does nothing if it is there already."""
    if (folder / "preprocessor_config.json").exists():
        return
    import torch
    import transformers

    tokenizer = byte_tokenizer(32000)
    tokenizer.chat_template = None
    tokenizer.add_special_tokens({"additional_special_tokens": list(_SPECIAL)})
    end, start = tokenizer.convert_tokens_to_ids(list(_SPECIAL[:2]))
    config = transformers.WhisperConfig(
        vocab_size=51865, d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12,
        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072, eos_token_id=end, bos_token_id=end,
        pad_token_id=end, decoder_start_token_id=start,
    )  # fmt: skip
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    transformers.WhisperForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    extractor = json.loads(transformers.WhisperFeatureExtractor().to_json_string())
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor | {"processor_class": "WhisperProcessor"}))


def recording(seed: int) -> bytes:
    """A WAV file of noise."""
    samples = np.random.default_rng(seed).normal(0, 3000, _RATE * _SECONDS).astype(np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as output:
        output.setparams((1, 2, _RATE, 0, "NONE", ""))
        output.writeframes(samples.tobytes())
    return file.getvalue()


def _hears(port: int) -> bool:
    """Whether the server at a port is ready."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    except httpx.TransportError:
        return False


def _transcribe(port: int, file: bytes) -> float:
    """Seconds until the text of a recording has come."""
    form = {"language": "en", "max_completion_tokens": str(_OUTPUT)}
    begin = time.perf_counter()
    url = f"http://127.0.0.1:{port}/v1/audio/transcriptions"
    httpx.post(url, data=form, files={"file": ("a.wav", file)}, timeout=600).raise_for_status()
    return time.perf_counter() - begin


def measure_stack(server: Server, seed: int, count: int) -> Iterator[Measure]:
    """Starts the server, sends recordings that it has not heard, and stops it."""
    with tempfile.TemporaryDirectory() as folder, running(server, Path(folder) / "server.log", _hears):
        files = [recording(seed + number) for number in range(count + _TOGETHER + 1)]
        _transcribe(server.port, files[-1])  # warm
        alone, together = files[:count], files[count:-1]
        yield Measure(_ONE, server.name, statistics.median([_transcribe(server.port, file) for file in alone]))
        yield Measure(_SAME, server.name, statistics.median([_transcribe(server.port, file) for file in alone]))
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(_TOGETHER) as pool:
            list(pool.map(lambda file: _transcribe(server.port, file), together))
        yield Measure(_MANY, server.name, time.perf_counter() - begin)


def measure_library(folder: Path, count: int) -> Iterator[Measure]:
    """The loop that the Transformers library offers, over a batch: encode, then decode with its cache."""
    import torch
    import transformers

    model: Any = transformers.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def seconds(batch: int) -> float:
        begin = time.perf_counter()
        with torch.inference_mode():
            encoded = model.model.encoder(torch.randn(batch, 80, 3000, dtype=torch.bfloat16))
            ids, cache = torch.zeros(batch, 4, dtype=torch.int64), None
            for _ in range(_OUTPUT):
                found = model(encoder_outputs=encoded, decoder_input_ids=ids, past_key_values=cache, use_cache=True)
                ids, cache = found.logits[:, -1:].argmax(-1), found.past_key_values
        return time.perf_counter() - begin

    seconds(1)
    yield Measure(_ONE, "Transformers", statistics.median(seconds(1) for _ in range(count)))
    yield Measure(_MANY, "Transformers", seconds(_TOGETHER))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "quire-bench-speech")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--recordings", type=int, default=3, help="one after the other in a round")
    parser.add_argument("--port", type=int, default=8270)
    arguments = parser.parse_args()
    build(arguments.folder)
    print(heading(), flush=True)
    flags = [
        "--dtype", "bfloat16", "--kv-cache-memory-bytes", str(2 * 2**30),
        "--override-generation-config", '{"eos_token_id": []}',
    ]  # fmt: skip
    server = quire("Quire", arguments.folder, arguments.port, flags)
    measures: list[Measure] = []
    for number in range(arguments.rounds):
        measures += measure_stack(server, 1000 * number, arguments.recordings)
        measures += measure_library(arguments.folder, arguments.recordings)
    print(report(measures))


if __name__ == "__main__":
    main()
