"""Options of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from quire.errors import StartupError
from quire.options.base import option
from quire.options.kv_events import KvEventsConfig
from quire.options.kv_transfer import OFFLOADING, KvTransferConfig

STATE_DTYPES = ("auto", "float32", "bfloat16", "float16")
SLIDING_WINDOW = "sliding_window"  # layers, in --kv-cache-dtype-skip-layers
KV_CACHE_DTYPES = ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class CacheOptions:
    """KV cache."""

    block_size: int | None = option(
        None, "Tokens in one KV block. Default: 16 on a CPU, 64 on a GPU.", minimum=1, maximum=512, affects_output=True
    )
    gpu_memory_utilization: float = option(
        0.9,
        "Fraction of the GPU's memory for this worker's weights, activations and KV cache, regardless of other "
        "processes: two workers with 0.5 each fit on one GPU.",
        minimum=0.01,
        maximum=1.0,
    )
    kv_cache_memory_bytes: int | None = option(
        None, "Size of the KV cache in bytes, including the states of recurrent layers, instead of "
        "--gpu-memory-utilization. Default on a CPU: a tenth of the free memory, at most 4 GiB, plus what these states "
        "take. VLLM_CPU_KVCACHE_SPACE is in GiB.", minimum=1, variables=("VLLM_CPU_KVCACHE_SPACE",),
    )  # fmt: skip
    num_gpu_blocks_override: int | None = option(
        None, "Number of KV blocks, regardless of memory; for testing preemption.", minimum=1
    )
    kv_cache_dtype: str = option(
        "auto", "Data type of cached keys and values: auto is the model's own; fp8 (e4m3) and the other 8-bit types "
        "halve the cache; bfloat16 is for models that ask for 8 bits.", choices=KV_CACHE_DTYPES,
        refused={"fp8_inc": "It is for Gaudi, which Quire does not support; use fp8."},
        affects_output=True,
    )  # fmt: skip
    kv_cache_dtype_skip_layers: tuple[str, ...] = option(
        (), "With an 8-bit --kv-cache-dtype, layers whose keys and values stay in the model's own data type: numbers "
        f"of layers, or {SLIDING_WINDOW} for those with a sliding window. Takes several words.",
        metavar=f"NUMBER|{SLIDING_WINDOW}", following=rf"\d+|{SLIDING_WINDOW}", affects_output=True,
    )  # fmt: skip
    calculate_kv_scales: bool = option(
        False,
        "With --kv-cache-dtype fp8, calculates the scales of keys and values for each layer at startup. Otherwise the "
        "scales are 1.",
        affects_output=True,
    )
    mamba_cache_dtype: str = option(
        "auto", "Data type of the convolution states of recurrent layers (Mamba and similar); auto is the model's own.",
        choices=STATE_DTYPES, affects_output=True,
    )  # fmt: skip
    mamba_ssm_cache_dtype: str = option(
        "auto", "Data type of the recurrent states of these layers; auto is that of --mamba-cache-dtype or, if that is "
        "auto too, float32, because each token adds only a little to a state.",
        choices=STATE_DTYPES, affects_output=True,
    )  # fmt: skip
    enable_prefix_caching: bool = option(
        True,
        "Keeps the KV blocks of finished requests for prompts with the same beginning, and states of recurrent layers.",
    )
    mamba_cache_mode: str = option(
        "align", "Whether the prefix cache saves states of recurrent layers, from which prompts with one beginning "
        "go on: after multiples of --mamba-block-size tokens (align), or never (none).", choices=("align", "none"),
        refused={"all": "Quire saves states at the ends of steps only; use align."},
    )  # fmt: skip
    mamba_block_size: int = option(
        256, "Multiples of tokens after which states of recurrent layers are saved, rounded up to whole blocks; see "
        "--mamba-cache-mode.", minimum=1,
    )  # fmt: skip
    kv_events_config: dict[str, Any] = option(
        {}, "Publishes over ZeroMQ what the prefix cache stores and removes, in vLLM's format; as JSON or key by key. "
        "Keys: enable_kv_cache_events (false), publisher (zmq or null), endpoint (tcp://*:5557; without an asterisk it "
        "is connected to), replay_endpoint (for missed batches; none by default), buffer_steps (batches kept for it: "
        "10000), hwm (messages that wait for a slow subscriber: 100000), topic. Whoever reads the events learns the "
        "tokens of all prompts.", schema=KvEventsConfig,
    )  # fmt: skip
    kv_transfer_config: dict[str, Any] = option(
        {}, "Exchanges KV blocks with other workers, as JSON or key by key. Keys: kv_connector "
        "(SharedStorageConnector: through a folder that all of them see; GrpcConnector: over the network, from worker "
        "to worker; OffloadingConnector: keeps them in host memory, like --swap-space; MultiConnector: several of "
        "these), kv_role (kv_both, kv_producer or kv_consumer: which workers save blocks, and which load them), "
        "kv_connector_extra_config (shared_storage_path, the folder, or with GrpcConnector local_storage_path, one of "
        "the machine's own, and max_gib, the size of its files beyond which those used least recently are deleted: "
        "32; with OffloadingConnector cpu_bytes_to_use, for all ranks together; with MultiConnector connectors, a list "
        "of objects with these keys).", schema=KvTransferConfig,
    )  # fmt: skip
    swap_space: float = option(
        0.0, "GiB of host memory per rank for KV blocks and saved states of recurrent layers that are evicted from the "
        "device; they are copied back when a prompt or a preempted request needs them.", minimum=0, maximum=1 << 20,
    )  # fmt: skip
    kv_offloading_size: float = option(
        0.0, "GiB of host memory, like --swap-space, but for all ranks of a worker together.", minimum=0,
        maximum=1 << 20,
    )  # fmt: skip
    cpu_offload_gb: float = option(
        0.0, "GiB of weights per GPU to keep in host memory: as many whole layers as fit, which are copied to the GPU "
        "in each forward pass, each while the one before it computes. No effect on a CPU.", minimum=0, maximum=1 << 20,
    )  # fmt: skip

    offload_group_size: int = option(
        0, "Number of layers of a group, of which the last --offload-num-in-group are kept in host memory, as with "
        "--cpu-offload-gb, which counts bytes instead; 0 for none. No effect on a CPU.", minimum=0, maximum=1024,
    )  # fmt: skip
    offload_num_in_group: int = option(
        1, "Number of layers of each group that are kept in host memory; see --offload-group-size.", minimum=1,
        maximum=1024,
    )  # fmt: skip

    def offloaded_layers(self) -> tuple[int, int] | None:
        """(layers of a group, how many at its end are offloaded); None if there are no groups.

        Raises:
            StartupError: the options contradict each other.
        """
        size, count = self.offload_group_size, self.offload_num_in_group
        if not size:
            return None
        if self.cpu_offload_gb:
            raise StartupError("--offload-group-size and --cpu-offload-gb both say what is offloaded: leave one out.")
        if count > size:
            raise StartupError(f"--offload-num-in-group {count} is more than --offload-group-size {size}: lower it.")
        return size, count

    def events(self) -> KvEventsConfig:
        """The settings of --kv-events-config.

        Raises:
            StartupError: events are enabled without prefix caching.
        """
        config = msgspec.convert(self.kv_events_config, KvEventsConfig)
        if config.is_on and not self.enable_prefix_caching:
            raise StartupError("--kv-events-config publishes what the prefix cache holds: it needs prefix caching.")
        return config

    @property
    def host_memory_options(self) -> list[str]:
        """The options that are set of those that say how much host memory KV blocks may take."""
        sizes = {
            "--swap-space": self.swap_space, "--kv-offloading-size": self.kv_offloading_size,
            f"cpu_bytes_to_use of {OFFLOADING} (--kv-transfer-config)": self.transfer().host_bytes,
        }  # fmt: skip
        return [name for name, size in sizes.items() if size]

    def host_bytes(self, num_ranks: int) -> int:
        """Host memory on each of a worker's ranks for blocks and saved states."""
        of_all = int(self.kv_offloading_size * 2**30) or self.transfer().host_bytes
        return int(self.swap_space * 2**30) or of_all // num_ranks

    def transfer(self) -> KvTransferConfig:
        """The settings of --kv-transfer-config, which the command line has checked."""
        return msgspec.convert(self.kv_transfer_config, KvTransferConfig)
