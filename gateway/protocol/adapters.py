"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`."""

from __future__ import annotations

import msgspec


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """A LoRA adapter to load and serve."""

    lora_name: str
    lora_path: str  # its folder, on the workers
    base_model_name: str | None = None  # the model it is for, if several are served
    load_inplace: bool = False  # replaces a loaded adapter of the same name


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    """A LoRA adapter to unload."""

    lora_name: str
    lora_int_id: int | None = None  # vLLM's number; ignored, since the name identifies it
    wait_seconds: float = 30.0  # for running requests that use it
