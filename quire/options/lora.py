"""Options of low-rank adapters (LoRA) on the engine's model."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from quire.bounds import MAX_ADAPTERS, check_adapter_name
from quire.errors import InvalidRequest, StartupError
from quire.options.base import option
from quire.options.json_object import check_object

ENABLE_FLAG = "--enable-lora"
UPDATING_FLAG = "--allow-runtime-lora-updating"
ROOT_FLAG = "--allowed-lora-root"
TARGETS_FLAG = "--lora-target-modules"
LORA_DTYPES = ("auto", "bfloat16", "float16")
# A word after --lora-modules that begins like this is another adapter, not the model: name=path, an object, a list.
_MODULE = r"[^-=/\\][^=/\\]*=|[{\[]"


class LoraModule(msgspec.Struct, frozen=True):
    """An adapter to serve from the start."""

    name: str  # requests name it as their model
    path: str  # its folder, in the PEFT library's format
    base_model_name: str | None = None  # base reported for it; None means the served model


class DefaultMediaAdapters(msgspec.Struct, frozen=True, omit_defaults=True):
    """Folders of adapters for conversations with media of a kind."""

    image: str | None = None
    video: str | None = None
    audio: str | None = None


def runtime_updating_option() -> Any:
    """An option shared by the gateway, which has the routes, and the engine, which carries them out."""
    return option(
        False, "Allows loading and unloading adapters while the server runs, with POST /v1/load_lora_adapter and "
        "/v1/unload_lora_adapter. Anyone who can use the API can do so; the adapters' folders must be inside "
        f"{ROOT_FLAG}.",
        variables=("VLLM_ALLOW_RUNTIME_LORA_UPDATING",),
    )  # fmt: skip


@dataclass(frozen=True)
class LoraOptions:
    """LoRA adapters."""

    group: ClassVar[str] = "LoRAConfig"

    enable_lora: bool = option(
        False, "Serves LoRA adapters on top of the model: a request selects one as its model. The other LoRA options "
        "need this. See docs/adapters.md.",
    )  # fmt: skip
    lora_modules: tuple[str, ...] = option(
        (), 'Adapter to serve from the start: NAME=PATH, or as JSON {"name": …, "path": …, "base_model_name": …}, or a '
        "JSON list of such objects. Several may follow one flag.", metavar="NAME=PATH|JSON…", following=_MODULE,
    )  # fmt: skip
    max_loras: int = option(
        1, "Maximum number of different adapters that run at the same time, each in a slot of its own on the device; "
        "requests for others wait.", minimum=1, maximum=1024,
    )  # fmt: skip
    max_lora_rank: int = option(
        16, "Maximum rank of an adapter; the slots on the device have this size.", minimum=1, maximum=1024
    )
    max_cpu_loras: int | None = option(
        None, "Number of adapters kept in host memory, including those on the device; at least --max-loras, which is "
        "the default. Other adapters are read again when they are requested.", minimum=1,
    )  # fmt: skip
    default_mm_loras: dict[str, Any] = option(
        {}, 'Folders of adapters for conversations with images, videos or audio, as JSON, such as {"audio": PATH}. '
        "They are served under the names image, video and audio. A chat that asks for the base model and contains one "
        "of these kinds is answered with its adapter.", schema=DefaultMediaAdapters,
    )  # fmt: skip
    lora_target_modules: tuple[str, ...] = option(
        (), "Modules that adapters may change, by the ends of their names, such as o_proj; what an adapter has for "
        "others is left out, with a warning. qkv_proj and gate_up_proj stand for the modules that they consist of. "
        "Takes several words. Default: all that the model's adapters can change.", affects_output=True,
        following=r"\w+(\.\w+)*", metavar="MODULE...",
    )  # fmt: skip
    lora_dtype: str = option(
        "auto", "Data type of the adapters' weights; auto takes the model's.", choices=LORA_DTYPES, affects_output=True
    )
    fully_sharded_loras: bool = option(
        False, "Splits both matrices of an adapter across the tensor-parallel ranks, instead of only one of them.",
        affects_output=True,
    )  # fmt: skip
    allow_runtime_lora_updating: bool = runtime_updating_option()
    allowed_lora_root: str | None = option(
        None, "Folder that must contain the folders of adapters loaded while the server runs, after following links.",
        metavar="PATH",
    )  # fmt: skip

    @property
    def host_places(self) -> int:
        """Number of adapters kept in host memory."""
        return self.max_loras if self.max_cpu_loras is None else self.max_cpu_loras

    def check(self) -> None:
        """Checks that the options are consistent and have an effect.

        Raises:
            StartupError: they are not; or see `modules`.
        """
        self.modules()
        default = LoraOptions()
        given = [name for name in self.__dataclass_fields__ if getattr(self, name) != getattr(default, name)]
        if not self.enable_lora and given:
            raise StartupError(f"--{given[0].replace('_', '-')} has no effect without {ENABLE_FLAG}; add that.")
        if self.host_places < self.max_loras:
            raise StartupError(
                f"--max-cpu-loras {self.max_cpu_loras} is less than --max-loras {self.max_loras}: adapters on the "
                "device are kept in host memory too. Raise it, or leave it out."
            )
        if self.allow_runtime_lora_updating and self.allowed_lora_root is None:
            raise StartupError(
                f"{UPDATING_FLAG} (or VLLM_ALLOW_RUNTIME_LORA_UPDATING) needs {ROOT_FLAG}, so that callers cannot load "
                "from arbitrary folders of this machine."
            )

    def modules(self) -> list[LoraModule]:
        """The adapters to serve from the start, with those for kinds of media.

        Raises:
            StartupError: one is malformed, or two have the same name.
        """
        found = [module for text in self.lora_modules for module in _modules(text)]
        found += [LoraModule(kind, path) for kind, path in self.default_mm_loras.items() if path]
        names = [module.name for module in found]
        if twice := {name for name in names if names.count(name) > 1}:
            raise StartupError(
                f"--lora-modules (and --default-mm-loras) have two adapters named {min(twice)!r}. Give each a name of "
                "its own."
            )
        if len(found) > MAX_ADAPTERS:
            raise StartupError(f"--lora-modules has {len(found)} adapters; at most {MAX_ADAPTERS} are served.")
        return found


def _modules(text: str) -> list[LoraModule]:
    """Parses one value of --lora-modules: NAME=PATH, a JSON object, or a JSON list of objects."""
    if not re.match(r"\s*[{\[]", text):
        name, _, path = text.partition("=")
        return [_module({"name": name.strip(), "path": path.strip()}, text)]
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise StartupError(f"--lora-modules {text[:200]!r} is not JSON: {error}.") from error
    return [_module(item, text) for item in (parsed if isinstance(parsed, list) else [parsed])]


def _module(fields: Any, text: str) -> LoraModule:
    try:
        if not isinstance(fields, dict):
            raise ValueError("an adapter must be an object")
        check_object(fields, LoraModule)
        module = msgspec.convert(fields, LoraModule)
        check_adapter_name("name", module.name)
    except (ValueError, InvalidRequest) as error:
        raise StartupError(
            f'--lora-modules {text[:200]!r}: {error} Write NAME=PATH, or {{"name": …, "path": …}} as JSON.'
        ) from error
    if not module.path:
        raise StartupError(f"--lora-modules {text[:200]!r} has no path; write NAME=PATH.")
    return module
