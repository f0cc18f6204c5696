"""Loads a model's processor of the Transformers library, without the parts for videos and audio, and without torch."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.processing_auto import processor_class_from_name

from quire.retrievers import RETRIEVERS_PROCESSORS
from quire.tokenizer.files import read_tokenizer_files
from quire.tokenizer.vocabulary_files import WHOLE
from tokenizer_svc.image_processors import class_named, load_image_processor
from tokenizer_svc.internvl_chat import internvl_chat_config, make_processor

_PIXTRAL = "transformers.models.pixtral"
# Classes of processors in the code of checkpoints, and what Transformers has in their place; or of retrievers, which
# refuse texts with images.
_OF_OWN_CODE = {"KimiK25Processor": "Kimi_K25Processor", **RETRIEVERS_PROCESSORS}
# What processors read of their part for videos when they are made, although they are not given one.
_OF_VIDEO_PARTS = {
    name: {"slice_mode": False, "downsample_mode": "16x"} for name in ("MiniCPMOcrProcessor", "MiniCPMV4_6Processor")
}


def load_processor(folder: Path) -> Any:
    """The processor of the model whose files are in a folder.

    The part for videos is left out because it needs torchvision.

    Raises: various exceptions if Transformers cannot load it.
    """
    if (config := internvl_chat_config(folder)) is not None:
        return make_processor(_in_part(processor_class_from_name("InternVLProcessor")), folder, config)
    processor_class = _in_part(_processor_class(folder))
    fields, _ = processor_class.get_processor_dict(folder)
    parts = {
        "image_processor": load_image_processor(folder),
        "tokenizer": _tokenizer(folder),
        "video_processor": video_part(processor_class),
    }
    module: Any = sys.modules[processor_class.__module__]
    if getattr(module, "num2words", "") is None:
        module.num2words = str  # SmolVLM's insists on this package for images too, but uses it for videos only
    return processor_class.from_args_and_dict([*map(parts.get, processor_class.get_attributes())], fields)


class _VideoPart(dict[str, Any]):
    """Fields of a part for videos, which are its attributes too. Processors are written as JSON when they are made."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


def video_part(processor_class: type[Any]) -> _VideoPart | None:
    """What takes the place of a processor's part for videos."""
    fields = _OF_VIDEO_PARTS.get(processor_class.__name__)
    return None if fields is None else _VideoPart(fields)


def _tokenizer(folder: Path) -> Any:
    """The tokenizer; from Quire's own reader if it is in files that Transformers reads with other packages or not at
    all."""
    if (folder / WHOLE).is_file():
        return transformers.AutoTokenizer.from_pretrained(folder)
    files = read_tokenizer_files(folder)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=files.tokenizer, **files.special_tokens)


def _processor_class(folder: Path) -> type[Any]:
    files = [folder / name for name in ("processor_config.json", "preprocessor_config.json")]
    read = [json.loads(file.read_bytes()) for file in files if file.is_file()]
    name = next(filter(None, (class_named(fields, "processor_class", "AutoProcessor") for fields in read)), "")
    name = _OF_OWN_CODE.get(name, name)
    return _pixtral_processor() if name == "PixtralProcessor" else processor_class_from_name(name)


def _pixtral_processor() -> type[Any]:
    """PixtralProcessor, whose module imports one that needs torchvision, for a function that another module has too."""
    name = f"{_PIXTRAL}.image_processing_pixtral"
    sys.modules[name] = importlib.import_module(f"{_PIXTRAL}.image_processing_pil_pixtral")
    try:
        found: type[Any] = importlib.import_module(f"{_PIXTRAL}.processing_pixtral").PixtralProcessor
    finally:
        del sys.modules[name]
    return found


def _in_part(processor_class: type[Any]) -> type[Any]:
    """A processor's class some of whose parts may be None."""

    def check(self: Any, name: str, part: Any) -> Any:
        if part is None or isinstance(part, _VideoPart):
            return part
        return processor_class.check_argument_for_proper_class(self, name, part)

    return type(
        processor_class.__name__, (processor_class,),
        {"check_argument_for_proper_class": check, "__module__": processor_class.__module__},
    )  # fmt: skip
