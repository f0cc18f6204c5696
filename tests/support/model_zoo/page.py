"""Writes the page of all models, docs/models.md: `python -m tests.support.model_zoo.page`.

Types of models that have become native are told as such, and those that are named behind it are tried again; `all`
tries all, which takes two minutes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import transformers

from tests.support.model_zoo.configurations import MODEL_TYPES, NATIVE
from tests.support.model_zoo.names import NAMES
from tests.support.model_zoo.walk import Outcome, walk

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
_HEAD = """# Models

Which of the text-generation architectures of Transformers {version} run here, and how:

* **native**: on Quire's own layers and kernels, with every feature that Quire has.
* **Transformers**: on that library's code with Quire's paged attention (`--model-impl transformers`, or `auto`, which
  chooses it for these). Batching, chunked prefill and the prefix cache work as for native models. Tensor parallelism
  and pipeline stages follow [the library's plans](scaling.md#models-that-run-on-the-transformers-library), for the
  models that have some. `--quantization`, `--batch-invariant` and the kernels of `--cpu-kernels` are not available, and
  steps are slower.
* **refused**: the start fails and says why. Most of these keep a state other than keys and values, or implement
  attention inside their layers instead of calling Transformers' attention interface.

Models whose images, videos or audio Quire reads are in [media.md](media.md); images of
[many others](media.md#other-models-with-an-image-encoder) are encoded by Transformers' code. The rest of the models
that take images or sound as well as text run as their language model alone, if Transformers has that as a separate
model. The code of a checkpoint is never run. Of the models that exist only as such code, the native ones below run
(InternLM 2, ChatGLM 3, Baichuan, MiniCPM, Llama Nemotron, TeleChat, Qwen 1 and others), and all others are refused
(Phi-3 Small). Beam, DeepSeek MoE, Jais, Llama Nemotron, MiniMax M3, openPangu, Qwen 1, Solar Pro, TeleChat and Tele-FLM
were tried with tiny models only, not with published weights. Texts of Qwen 1 can be no longer than `seq_length`, if it
has `use_dynamic_ntk` or `use_logn_attn`.

Of the text models in vLLM's registry (at its commit 0002bff0), these have no row below, since Transformers does not
have them, and are refused: ArcticForCausalLM, Fairseq2LlamaForCausalLM, GritLM, Grok1ModelForCausalLM,
HCXVisionForCausalLM, InternLM2VEForCausalLM, OuroForCausalLM, PanguProMoEV2ForCausalLM, PanguUltraMoEForCausalLM,
Plamo2ForCausalLM, Plamo3ForCausalLM and Step3TextForCausalLM. MistralLarge3ForCausalLM is vLLM's own name for files in
[Mistral's format](loading.md).

Encoders, rerankers and reward models, which generate nothing, are described in [pooling.md](pooling.md).

**Sparse attention** (DeepSeek V3.2; GLM 5 to 5.2; Hunyuan 4; A.X K2; MiniMax M3): up to `index_topk` tokens, 2,048 in
the published models, a query attends to all tokens, and beyond to those that its layer's indexer chooses, or an earlier
layer's if layers share choices. The indexer's keys are cached beside the vectors of compressed attention (MLA), which
takes 22 % more memory in the layers that have one. With a `--max-model-len` of at most `index_topk`, indexers are not
loaded. Otherwise:

* On a CPU, torch's operators attend, not Quire's C++ kernels. On a GPU, steps are replayed from CUDA graphs only while
  all their contexts are that short.
* `--batch-invariant` and `--decode-context-parallel-size` are refused. A pipeline stage cannot begin with a layer that
  has no indexer of its own.
* The layer for multi-token prediction (`--speculative-config '{{"method": "mtp"}}'`) attends to all tokens.
* In MiniMax M3, each key-value head of a layer chooses 16 blocks of 128 tokens, and layers without an indexer attend to
  all tokens. The indexer's keys take 12.5 % more memory. Torch's operators choose and attend on a GPU too, and no GPU
  has run it yet. Its layers for multi-token prediction are not read.

**Compressed entries** (DeepSeek V4): each layer attends to a window of 128 tokens, and most layers also to entries that
stand for 4 tokens each, of which an indexer chooses 512, or for 128. In DeepSeek-V4-Flash's shape, by computation, a
token of context takes 18 KiB in bfloat16, and a running sequence 35 or 57 MB for its windows, in blocks of 16 or 64
tokens. Checkpoints are read as published, with matrices in 8 bits and experts in 4, and so are conversations:

```sh
quire serve deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 8 --enable-expert-parallel \\
  --tokenizer-mode deepseek_v4 --reasoning-parser deepseek_v4 --tool-call-parser deepseek_v4 \\
  --enable-auto-tool-choice --speculative-config '{{"method": "mtp", "num_speculative_tokens": 1}}'
```

* Torch's operators make entries and attend, on a GPU too, where steps are not recorded as CUDA graphs. No GPU has run
  it yet; the tests run it on an emulated one.
* `--kv-cache-dtype fp8`, `--attention-backend`, `--batch-invariant`, `--decode-context-parallel-size`,
  `--disable-sliding-window` and `--enable-prompt-embeds` are refused.
* `--block-size` must be a multiple or a part of 4, and of 128.

**Pruned layers** (Llama Nemotron 51B, Super, Ultra): the parts and sizes of each layer are read from `block_configs`.
In the KV cache, a layer takes room for its own key-value heads, and one without attention takes none.

**Sums of earlier layers** (Solar Pro Preview) are mixed into those of later ones, so `--pipeline-parallel-size` is
refused.

**Pairs of layers** (LongCat Flash): what is one layer in checkpoints is two here, with a mixture of experts beside
both, so `--pipeline-layer-partition` counts each as two, and no stage may begin with the second one of a pair. Torch's
operators add what experts without weights return, so on a CPU steps are not recorded; nor are they with Laguna's gates.

**Experts in attention** (JetMoE): queries of all experts are computed, of which those of the chosen ones attend, and
the output projection has zeros for the others. Torch's operators put them in place, so on a CPU steps are not recorded.
No ranks can share a key-value head, and adapters cannot change attention.

**Alternating updates** (Gemma 3n): hidden states are four streams, of which a layer computes one and corrects the
others. Torch's operators do that, so on a CPU steps are not recorded; on a GPU they are, as CUDA graphs (tested on an
emulated one). The last layers have no keys and values of their own, and of a prompt they compute only the rows that
tokens are sampled from. `--pipeline-parallel-size` is refused. Images are not read, audio is
([media.md](media.md#gemma-3n)).

The tests run a tiny random model of each type, longer than its windows and in chunks, and compare its tokens with those
of Transformers, or of a model there that computes the same. `make models` makes this page from the result.

| architecture | `model_type` | known as | runs |
|---|---|---|---|
"""


def page(outcomes: Mapping[str, Outcome]) -> str:
    """As Markdown: a row for each architecture and way of running.

    Args:
        outcomes: by type of model.
    """
    rows: dict[tuple[str, Outcome], list[str]] = {
        (name, Outcome("native")): [] for name in NATIVE - set(MODEL_TYPES.values())
    }
    for model_type, outcome in outcomes.items():
        rows.setdefault((MODEL_TYPES[model_type], outcome), []).append(model_type)
    head = _HEAD.format(version=".".join(transformers.__version__.split(".")[:2]))
    ordered = sorted(rows.items(), key=lambda row: (row[0][0].lower(), row[0][0], row[1]))
    return head + "".join(_row(name, types, outcome) for (name, outcome), types in ordered)


def outcomes_of(text: str) -> dict[str, Outcome]:
    """What a page says, by type of model."""
    found = {}
    for line in text.partition("|---|---|---|---|\n")[2].splitlines():
        _, types, _, runs = line.strip("| ").split(" | ")
        way, _, reason = runs.partition(": ")
        outcome = Outcome("native" if "native" in way else "refused" if "refused" in way else "Transformers", reason)
        found |= {model_type: outcome for model_type in types.replace("`", "").split(", ") if model_type}
    return found


def _row(name: str, types: list[str], outcome: Outcome) -> str:
    way = "**native**" if outcome.way == "native" else outcome.way
    runs = f"{way}: {outcome.reason}" if outcome.reason else way
    shown = ", ".join(f"`{each}`" for each in sorted(types))
    return f"| {name} | {shown} | {NAMES.get(name, '')} | {runs} |\n"


def _walk_all(model_types: Iterable[str]) -> dict[str, Outcome]:
    found = {}
    for model_type in model_types:
        with tempfile.TemporaryDirectory() as folder:
            found[model_type] = walk(model_type, Path(folder))
        print(model_type, found[model_type].way, file=sys.stderr)
    return found


if __name__ == "__main__":
    before = outcomes_of(PAGE.read_text(encoding="utf-8"))
    native = {name for name in MODEL_TYPES if MODEL_TYPES[name] in NATIVE}
    asked = set(MODEL_TYPES) if sys.argv[1:] == ["all"] else set(sys.argv[1:])
    again = asked | native | {name for name in MODEL_TYPES if name not in before or before[name].way == "native"}
    PAGE.write_text(page(before | _walk_all(sorted(again))), encoding="utf-8")
