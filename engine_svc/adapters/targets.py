"""Which of a model's modules adapters may change, if operators allow only some (--lora-target-modules)."""

from __future__ import annotations

from dataclasses import dataclass

# What other servers, which join the matrices of these modules, call them together.
_JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


@dataclass(frozen=True)
class TargetModules:
    """The ends of the names of modules that adapters may change; without any, all modules."""

    ends: tuple[str, ...] = ()

    def have(self, module: str) -> bool:
        """Whether adapters may change the module with this name."""
        ends = [part for end in self.ends for part in (end, *_JOINED.get(end, ()))]
        return not ends or any(f".{module}".endswith(f".{end}") for end in ends)
