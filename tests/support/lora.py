"""Adapters like those written by the PEFT library, base models merged with them, and executors that run both."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from engine_svc.executor.base import Executor, create_executor
from engine_svc.plan import (
    AdapterChanges,
    AdapterPlacement,
    CacheSize,
    KvCacheSpec,
    NewSequence,
    ScheduledSequence,
    StepPlan,
)
from quire.options.model import ModelOptions
from tests.support.engine_options import engine_options
from tests.support.plans import sampling_plan
from tests.support.waiting import WAIT_SECONDS

_PREFIX = "base_model.model."


@dataclass(frozen=True)
class MadeAdapter:
    """A folder, and what it adds to the base's weights."""

    folder: Path
    deltas: Mapping[str, torch.Tensor]  # float64 [outputs, inputs], by the module


def modules_of(base: Path, modules: Mapping[str, tuple[int, int]], names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The modules that accept adapters, are in the base's checkpoint, and whose names end with one of `names`."""
    tensors = load_file(base / "model.safetensors")
    ends = {name: name.rpartition(".")[2] for name in modules if f"{name}.weight" in tensors}
    assert set(ends.values()) >= set(names), (sorted(names), sorted(set(ends.values())))
    return {name: modules[name] for name, end in ends.items() if end in names}


def write_adapter(
    folder: Path, shapes: Mapping[str, tuple[int, int]], *, rank: int = 8, seed: int = 0,
    rank_pattern: Mapping[str, int] | None = None, dtype: torch.dtype = torch.float32, size: float = 1.0,
    whole: Mapping[str, torch.Tensor] | None = None, **settings: Any,
) -> MadeAdapter:  # fmt: skip
    """Random matrices for modules, by their names in the base: (outputs, inputs).

    Args:
        size: magnitude of what the adapter adds, relative to the inputs.
        whole: weights that replace those of modules, by the modules' names, or by their own.
        settings: further fields of adapter_config.json.
    """
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "base", "r": rank,
        "lora_alpha": 2 * rank, "bias": "none", "use_rslora": False, "target_modules": [*shapes],
        "rank_pattern": dict(rank_pattern or {}), "alpha_pattern": {},
    } | settings  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors, deltas = {}, {}
    for module, (outputs, inputs) in shapes.items():
        own = (rank_pattern or {}).get(module, rank)
        a = torch.randn(own, inputs, generator=generator).mul_(size / inputs**0.5).to(dtype)
        b = torch.randn(outputs, own, generator=generator).mul_(own**-0.5 / 2).to(dtype)
        alpha = config["alpha_pattern"].get(module, config["lora_alpha"])
        scale = alpha / (own**0.5 if config["use_rslora"] else own)
        is_embedding = module.endswith(("embed_tokens", "embeddings"))
        names = ("lora_embedding_A", "lora_embedding_B") if is_embedding else ("lora_A.weight", "lora_B.weight")
        tensors |= {f"{_PREFIX}{module}.{name}": each for name, each in zip(names, (a, b), strict=True)}
        product = scale * (b.double() @ a.double())
        deltas[module] = product.T if is_embedding else product
    tensors |= {
        f"{_PREFIX}{module}" if module.endswith((".weight", ".bias")) else f"{_PREFIX}{module}.weight": weight
        for module, weight in (whole or {}).items()
    }
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "adapter_model.safetensors")
    return MadeAdapter(folder, deltas)


def merge(base: Path, adapter: MadeAdapter, target: Path, *, inputs_first: bool = False) -> Path:
    """Writes the base with the adapter merged into its weights, summed in float64.

    Args:
        inputs_first: whether the base's matrices are transposed, with inputs as rows.
    """
    shutil.copytree(base, target)
    file = target / "model.safetensors"
    tensors, missing = load_file(file), set(adapter.deltas)
    for module, delta in adapter.deltas.items():
        name = f"{module}.weight"
        if name in tensors:
            tensors[name] = (tensors[name].double() + (delta.T if inputs_first else delta)).float()
            missing.discard(module)
    assert not missing, (sorted(missing), sorted(tensors))
    save_file(tensors, file, metadata={"format": "pt"})
    return target


@dataclass
class AdapterExecutor:
    """Generates greedily, with steps like those planned by the control side."""

    executor: Executor
    spec: KvCacheSpec
    keys: dict[Path, int] = field(default_factory=dict)
    step: int = 0

    def read(self, *folders: Path) -> dict[Path, str]:
        """Reads adapters into host memory; returns an error or an empty text for each."""
        new = {folder: len(self.keys) + 1 + number for number, folder in enumerate(folders)}
        self.keys |= new
        found = self._run(AdapterChanges(read={key: str(folder) for folder, key in new.items()})).read_adapters
        found = dict(found)

        deadline = time.monotonic() + WAIT_SECONDS
        while len(found) < len(new):
            assert time.monotonic() < deadline, f"only {found} came of {new}"
            found |= self._run(AdapterChanges()).read_adapters
            time.sleep(0.01)
        return {folder: found[key] for folder, key in new.items()}

    def place(self, folders: Mapping[int, Path]) -> None:
        """Gives slots of the device to adapters."""
        self._run(AdapterChanges(placed=[AdapterPlacement(slot, self.keys[each]) for slot, each in folders.items()]))

    def _run(self, changes: AdapterChanges) -> Any:
        return self.run([], [], changes)

    def run(self, new: list[NewSequence], scheduled: list[ScheduledSequence], changes: AdapterChanges) -> Any:
        """One step."""
        self.step += 1
        self.executor.submit(StepPlan(self.step, new, scheduled, adapters=changes))
        return self.executor.collect()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        adapter_slots: Sequence[int],
        count: int = 32,
        draft: Callable[[int, int], Sequence[int]] = lambda slot, known: (),
    ) -> list[list[int]]:
        """The tokens of all prompts together.

        Args:
            draft: returns draft tokens that follow the given number of tokens of a prompt's output.
        """
        pages = -(-(max(map(len, prompts)) + count) // self.spec.block_size)
        groups = len(self.spec.windows)
        new, scheduled = [], []
        for slot, (prompt, adapter) in enumerate(zip(prompts, adapter_slots, strict=True)):
            blocks = [[(slot * groups + group) * pages + page for page in range(pages)] for group in range(groups)]
            plan = sampling_plan(temperature=0.0)
            new.append(NewSequence(slot, [*prompt], len(prompt), 0, blocks, plan, adapter_slot=adapter))
            scheduled.append(ScheduledSequence(slot, 0, len(prompt), 1, []))
        found: list[list[int]] = [[] for _ in prompts]
        while scheduled:
            result = self.run(new, scheduled, AdapterChanges())
            assert not result.failed_slots, result.failed_slots
            for slot, run in zip(result.sampled_slots, result.sampled_token_ids, strict=True):
                found[slot] += run
            new, scheduled = [], []
            for slot, (prompt, output) in enumerate(zip(prompts, found, strict=True)):
                drafts = tuple(draft(slot, len(output)))[: max(0, count - len(output) - 1)]
                if len(output) < count:
                    computed, rows = len(prompt) + len(output) - 1, 1 + len(drafts)
                    scheduled.append(ScheduledSequence(slot, computed, rows, rows, [], drafts))
        return found


@contextmanager
def adapter_executor(folder: Path, **options: Any) -> Iterator[AdapterExecutor]:
    """A model that accepts adapters, in float32 unless the options say otherwise."""
    given: dict[str, Any] = {
        "dtype": "float32", "use_tqdm_on_load": False, "enable_lora": True, "max_loras": 4, "max_lora_rank": 64,
        "max_num_seqs": 16,
    }  # fmt: skip
    chosen = engine_options(**given | options)
    executor = create_executor(chosen.parallel)
    try:
        spec = executor.load(ModelOptions(model=str(folder)), chosen)
        executor.allocate(CacheSize(256))
        yield AdapterExecutor(executor, spec)
    finally:
        executor.close()
