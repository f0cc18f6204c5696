"""Whether Quire can read the images of a vision-language model that it does not list.

It can if Transformers' code does nothing with an image but encode it, and put the embeddings in the places of its
tokens. To find out, that code is run once, without weights and with something in place of the text model that records
what it would get: a model that also gives it a mask, positions or features of its own does more.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from engine_svc.media.encoder_model import TEXT_MODELS, bare_model
from engine_svc.media.input_forms import MASK, MASK_OF_ARIA
from quire.images import GRID, PIXELS

_SIZES = "image_sizes"
_INPUTS = frozenset({PIXELS, MASK, MASK_OF_ARIA, _SIZES, GRID})
# Arguments of encoders that have defaults, or values in the configuration.
_SETTINGS = frozenset({"vision_feature_layer", "vision_feature_select_strategy", "interpolate_pos_encoding"})
_OLD_NAMES = frozenset({"pixel_values_images"})  # of pixels, beside their name
# Arguments of models whose attention or positions depend on which tokens are of images.
_KINDS_OF_TOKENS = frozenset({"token_type_ids", "mm_token_type_ids"})
# What text models may be told besides embeddings.
_SWITCHES = frozenset({"use_cache", "return_dict", "output_attentions", "output_hidden_states"})
_SIDE = 28  # of the image that is tried, in pixels
_NUM_FEATURES = 4
_BEFORE, _AFTER = 2, 1  # tokens of text around it


@dataclass(frozen=True)
class ImageSupport:
    """What becomes of the images of a model.

    Attributes:
        obstacle: why they cannot be read; empty if they can.
        modules: the names of the parts of the model beside its text model.
    """

    obstacle: str
    modules: tuple[str, ...] = ()


def image_support(raw: Mapping[str, Any]) -> ImageSupport:
    """
    Args:
        raw: config.json, with the user's changes.
    """
    # Whether the embedding is also the output layer makes no difference, and is known only later.
    return _support(json.dumps({**raw, "tie_word_embeddings": False}, sort_keys=True, default=str))


@functools.lru_cache(maxsize=4)
def _support(config: str) -> ImageSupport:
    """
    Args:
        config: as JSON.
    """
    raw = json.loads(config)
    known = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(raw.get("model_type", ""), ())
    if raw["architectures"][0] not in ((known,) if isinstance(known, str) else known):
        return ImageSupport("for Transformers, it is not a model of images and text")
    try:
        model = bare_model(raw)
    except Exception as error:  # whatever Transformers raises about a configuration, or about a package that it lacks
        return ImageSupport(f"Transformers cannot make its image encoder: {_line(error)}")
    name = next((name for name in TEXT_MODELS if hasattr(model, name)), None)
    if name is None or not hasattr(model, "get_image_features"):
        return ImageSupport("Transformers cannot encode its images apart from its text")
    modules = tuple(each for each, _ in model.named_children() if each != name)
    return ImageSupport(_obstacle_in_arguments(model) or _obstacle_in_use(model, name), modules)


def _obstacle_in_arguments(model: Any) -> str:
    taken = inspect.signature(model.get_image_features).parameters
    named = {name for name, each in taken.items() if each.kind is not each.VAR_KEYWORD}
    if PIXELS not in named or (unknown := sorted(named - _INPUTS - _SETTINGS - _OLD_NAMES)):
        return f"its image encoder takes {', '.join(unknown) if PIXELS in named else 'no pixel_values'}"
    if kinds := sorted(_KINDS_OF_TOKENS & inspect.signature(model.forward).parameters.keys()):
        return f"its attention or its positions depend on which tokens are of images ({kinds[0]})"
    text = model.config.get_text_config()
    if "mrope_section" in (getattr(text, "rope_parameters", None) or {}):
        return "its tokens have three positions each (mrope_section)"
    if text.model_type == "gemma3_text":
        return "its text model is Gemma 3's, which is supported with Gemma 3's own images only"
    if not isinstance(getattr(model.config, "image_token_id", None), int):
        return "its configuration does not say which token stands for images (image_token_id)"
    return ""


class _Reached(Exception):
    """The text model was called."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.given = given


class _Embedding(torch.nn.Module):
    """Embeds each token as its own number."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1, size))

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        return token_ids[..., None].expand(*token_ids.shape, self.weight.shape[1]).float()


class _TextModel(torch.nn.Module):
    """Takes the text model's place, and raises _Reached."""

    gradient_checkpointing = False

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = _Embedding(config.hidden_size)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embed_tokens

    def forward(self, **given: Any) -> None:
        raise _Reached(given)


class _Encoder:
    """Takes the place of an encoder.

    Attributes:
        told: what its caller has set that Quire leaves at its default; None means that the configuration has it.
    """

    def __init__(self, signature: inspect.Signature, found: BaseModelOutputWithPooling) -> None:
        self._signature, self._found = signature, found
        self.told = ""

    def __call__(self, *args: Any, **kwargs: Any) -> BaseModelOutputWithPooling:
        given = self._signature.bind(*args, **kwargs).arguments
        for name in sorted(_SETTINGS & given.keys()):
            default = self._signature.parameters[name].default
            if given[name] != default is not None:
                self.told = f"its image encoder is told {name} {given[name]}"
        return self._found


def _obstacle_in_use(model: Any, name: str) -> str:
    """
    Args:
        name: of its text model, which is replaced.
    """
    text = _TextModel(model.config.get_text_config())
    setattr(model, name, text)
    features = torch.full((_NUM_FEATURES, text.config.hidden_size), -1.0)
    own, error = inspect.signature(model.get_image_features), Exception()
    for given in ([features], features[None]):  # one tensor for each image, or one for all images
        encoder = _Encoder(own, BaseModelOutputWithPooling(last_hidden_state=features[None], pooler_output=given))
        model.get_image_features = encoder
        try:
            _call(model)
        except _Reached as reached:
            return encoder.told or _difference(reached.given, features, _around_image(model, -1))
        except Exception as raised:  # whatever a model raises that wants something else
            error = raised
    return f"its code does more with images than to put their embeddings in the places of their tokens: {_line(error)}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _around_image(model: Any, image: int) -> list[int]:
    """Tokens of text, which are others than the model's token of images, around those of an image."""
    text = [token_id for token_id in range(_BEFORE + 1) if token_id != model.config.image_token_id]
    return [*text[:_BEFORE], *[image] * _NUM_FEATURES, *text[:_AFTER]]


def _call(model: Any) -> None:
    ids = torch.tensor([_around_image(model, model.config.image_token_id)])
    taken = inspect.signature(model.forward).parameters
    unit = getattr(model.config.vision_config, "spatial_merge_size", 1)
    inputs = {
        PIXELS: torch.zeros(1, 3, _SIDE, _SIDE), _SIZES: torch.tensor([[_SIDE, _SIDE]]),
        GRID: torch.tensor([[1, 2 * unit, 2 * unit]]),
    }  # fmt: skip
    with torch.inference_mode():
        model(
            input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False,
            **{name: each for name, each in inputs.items() if name in taken},
        )  # fmt: skip


def _difference(given: Mapping[str, Any], features: torch.Tensor, embeddings: list[int]) -> str:
    """What a text model gets besides the embeddings of tokens, with those of images in their places.

    Args:
        embeddings: the value of each of these.
    """
    count = len(embeddings)
    positions = torch.arange(count)
    plain = {"attention_mask": torch.ones_like(positions), "position_ids": positions, "cache_position": positions}
    for name, value in given.items():
        if name == "inputs_embeds" or value is None or (name in _SWITCHES and isinstance(value, bool)):
            continue
        if not isinstance(value, torch.Tensor) or name not in plain or not value.view(-1).equal(plain[name]):
            return f"its text model gets {name} of its own making"
    embedded = given.get("inputs_embeds")
    if embedded is None or embedded.shape != (1, count, features.shape[1]) or embedded[0, :, 0].tolist() != embeddings:
        return "its text model does not get the embeddings of images in the places of their tokens"
    return ""
