"""What workers that generate nothing have no use for: those for pooling, and those that only encode."""

from __future__ import annotations

from collections.abc import Mapping

from quire.errors import StartupError
from quire.options.engine import EngineOptions


def check_one_shot(options: EngineOptions, kind: str, others: Mapping[str, bool]) -> None:
    """Checks that the options are compatible with a worker whose requests are each computed in one step.

    Args:
        kind: the option that makes it such a worker, for the message.
        others: options that this kind does not support either → whether they are set.

    Raises:
        StartupError: one is not.
    """
    backend, executor = options.parallel.distributed_executor_backend, options.parallel.executor
    refused = {
        f"--distributed-executor-backend {backend}": backend in ("ray", "external_launcher"),
        "--worker-cls": executor.worker_cls != "auto",
        "--worker-extension-cls": bool(executor.worker_extension_cls),
        "--speculative-config": options.speculative.chosen() is not None,
        "--enable-prompt-embeds": options.generation.enable_prompt_embeds,
        "--enable-return-routed-experts": options.generation.enable_return_routed_experts,
        "--watermark-config": options.watermark.watermark() is not None,
        "--return-sampling-mask": options.generation.return_sampling_mask,
        "--weight-transfer-config": options.upkeep.weight_transfer() is not None,
        "--logits-processors": bool(options.generation.logits_processors),
        "--kv-cache-dtype": options.cache.kv_cache_dtype not in ("auto", "bfloat16"),
        "--kv-cache-dtype-skip-layers": bool(options.cache.kv_cache_dtype_skip_layers),
        "--kv-transfer-config": options.cache.transfer().is_on,
        **dict.fromkeys(options.cache.host_memory_options, True),
        **others,
    }
    if wrong := [name for name, given in refused.items() if given]:
        raise StartupError(f"{kind} does not support {wrong[0]}; leave it out.")
