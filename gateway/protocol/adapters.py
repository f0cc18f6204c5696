"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`."""

from __future__ import annotations

import msgspec


class LoadAdapterRequest(msgspec.Struct, kw_only=True):
    """An adapter to serve from now on."""

    lora_name: str
    lora_path: str  # its folder, on the workers
    base_model_name: str | None = None  # of several models, the one that it is for
    load_inplace: bool = False  # in place of another of that name


class UnloadAdapterRequest(msgspec.Struct, kw_only=True):
    """An adapter to serve no more."""

    lora_name: str
    lora_int_id: int | None = None  # vLLM's number; the name says it all
    wait_seconds: float = 30.0  # for the last request that runs with it
