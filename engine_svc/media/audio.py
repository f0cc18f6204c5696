"""Encodes audio to embeddings of the text model, with the audio encoder and projector of the Transformers library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.masking_utils import create_bidirectional_mask

from engine_svc.media.base import EncodedImage, joined, tensor_of
from engine_svc.media.rotary_positions import PlacedGrid
from engine_svc.media.unfit import UnfitImage
from quire.images import FEATURE_MASKS, FEATURES, Image, ImageInput
from quire.media import MediaKind, filled_up

# Frames of an audio for encoders of one piece of any length: 30 s for Gemma 3n and 4.
_MOST_FRAMES = {"granite_speech_encoder": 30_000}
_MOST_OF_OTHERS = 3000
_MOST_ROWS = 8  # pieces of an audio that are encoded at once, so that memory stays bounded
_FRAMES_AT_ONCE = 1600  # the same, of one whose frames hear only those before them


class AudioEncoder:
    """The parts of an audio-language model that turn an audio into embeddings.

    Attributes: see MediaEncoder.
    """

    def __init__(self, model: Any, kinds: frozenset[MediaKind], dtype: torch.dtype, device: torch.device) -> None:
        """
        Args:
            model: from `load_encoder`.
        """
        self.kinds = kinds
        config = model.config
        is_whole = config.is_encoder_decoder
        self.frames_per_token: int = getattr(config, "audio_length_per_tok", 0)
        self.token_ids: Sequence[int] | None = None
        if config.model_type == "gemma3n":  # whose text model has no embedding of the token that ends an audio
            self.token_ids = [config.audio_token_id, config.eoa_token_id]
        elif not is_whole and not self.frames_per_token:
            self.token_ids = [config.audio_token_id]
        self._model = model
        self._dtype, self._device = dtype, device
        audio = getattr(config, "encoder_config", None) or getattr(config, "audio_config", None)
        self._checks = _AudioChecks(config if is_whole else audio, self.frames_per_token)
        self._features: Callable[[torch.Tensor, torch.Tensor], Any]
        if is_whole:
            self._features = self._of_encoder
        elif self.frames_per_token:
            self._features = self._of_live
        elif config.model_type in ("granite_speech", "voxtral"):
            self._features = self._of_all
        elif config.model_type in ("gemma4", "gemma4_unified"):
            self._features = self._of_gemma4
        else:
            self._features = getattr(model, "get_audio_features", self._of_qwen2)

    @torch.inference_mode()
    def encode(self, image: Image) -> EncodedImage:
        """See MediaEncoder.encode."""
        features, mask = (tensor_of(each, self._device) for each in self._checks.check(image))
        found = []
        for some, own in zip(features.to(self._dtype).split(_MOST_ROWS), mask.split(_MOST_ROWS), strict=True):
            encoded = self._features(some, own)
            found.append(joined(getattr(encoded, "pooler_output", encoded)).to(self._dtype))
        return EncodedImage(torch.cat(found), None, both_ways=False)

    def grids(
        self, image: Image, places: npt.NDArray[np.int64], encoded: EncodedImage | None = None
    ) -> list[PlacedGrid]:
        """See MediaEncoder.grids: tokens of audio have the positions of text."""
        return []

    def _of_encoder(self, features: torch.Tensor, mask: torch.Tensor) -> Any:
        """What Whisper's decoder attends to, silence after the recording included, filled up with zeros.

        Args: see `_of_qwen2`.
        """
        rows = self._model.encoder(features).last_hidden_state
        return torch.nn.functional.pad(rows, (0, 0, 0, filled_up(rows.shape[1]) - rows.shape[1]))

    def _of_all(self, features: torch.Tensor, mask: torch.Tensor) -> Any:
        """Of Voxtral, which hears the silence that fills an audio up, and of Granite Speech, where nothing does.

        Args: see `_of_qwen2`.
        """
        return self._model.get_audio_features(features)

    def _of_live(self, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Of Voxtral Realtime, whose encoder is made for audio that is still coming.

        Args: see `_of_qwen2`; a single row.
        """
        return self._going_on(features, {})

    @torch.inference_mode()
    def hear(self, audio: Image, caches: dict[str, Any]) -> EncodedImage:
        """See LiveEncoder.hear."""
        if not self.frames_per_token:
            raise UnfitImage("the model does not write while it hears")
        features, _ = (tensor_of(each, self._device) for each in self._checks.check(audio))
        found = self._going_on(features.to(self._dtype), caches)
        return EncodedImage(joined(found).to(self._dtype), None, both_ways=False)

    def _going_on(self, features: torch.Tensor, caches: dict[str, Any]) -> torch.Tensor:
        found: list[torch.Tensor] = []
        for some in features.split(_FRAMES_AT_ONCE, dim=-1):
            encoded = self._model.get_audio_features(some, use_cache=True, **caches)
            caches |= {name: encoded[name] for name in ("past_key_values", "padding_cache")}
            found.append(encoded.pooler_output)
        return torch.cat(found, dim=1)

    def _of_gemma4(self, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Of Gemma 4, which encodes padding too.

        Args: see `_of_qwen2`; the features are [rows, frames, mels].

        Returns: as `_of_qwen2`.
        """
        found = self._model.get_audio_features(features, mask)
        kept: torch.Tensor = found.pooler_output[found.attention_mask]
        return kept

    def _of_qwen2(self, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """What Qwen2-Audio does within its forward pass, as it has no method for that.

        Args:
            features: [rows, mels, frames]
            mask: [rows, frames], true where they are not padding.

        Returns: [embeddings, hidden_size], without those of padding.
        """
        tower = self._model.audio_tower
        inner, outer = tower._get_feat_extract_output_lengths(mask.sum(-1))
        places = torch.arange((features.shape[-1] - 2) // 2 + 1, device=features.device)
        attended = create_bidirectional_mask(
            config=tower.config, inputs_embeds=features.new_zeros(len(features), len(places), 1),
            attention_mask=(places < inner[:, None]).long(),
        )  # fmt: skip
        found = self._model.multi_modal_projector(tower(features, attention_mask=attended).last_hidden_state)
        kept: torch.Tensor = found[places[: found.shape[1]] < outer[:, None]]
        return kept


class _AudioChecks:
    """What an audio encoder was made for; see unfit.py for why that matters."""

    def __init__(self, audio: Any, frames_per_token: int = 0) -> None:
        """
        Args:
            audio: configuration of the encoder.
            frames_per_token: see ModelFacts.
        """
        names = ("max_source_positions", "max_position_embeddings")
        # Encoders of pieces of one length, those of one piece of any length, cut into windows, and Gemma's.
        self._window: int = frames_per_token or 2 * getattr(audio, "n_window", 0)
        self._frames: int = 2 * next((getattr(audio, name) for name in names if hasattr(audio, name)), 0)
        self._is_upright = not (self._window or self._frames)  # whether frames come before the bands of each
        self._most_frames = _MOST_FRAMES.get(audio.model_type, _MOST_OF_OTHERS)
        sizes = ("audio_embed_dim", "num_mel_bins", "input_feat_size")
        self._mels: int = next((getattr(audio, name) for name in sizes if hasattr(audio, name)), 0)
        self._mels = self._mels or audio.subsampling_conv_channels[0]

    def check(self, image: Image) -> tuple[ImageInput, ImageInput]:
        """The features [rows, mels, frames], or [1, frames, mels] for Gemma and Granite, and their mask [rows, frames].

        Raises:
            UnfitImage: they are not those of an audio.
        """
        given = {each.name: each for each in image.inputs}
        features, mask = given.get(FEATURES), next((given[name] for name in FEATURE_MASKS if name in given), None)
        if features is None or mask is None:
            raise UnfitImage(f"it needs {FEATURES} and a mask, {' or '.join(FEATURE_MASKS)}")
        rows, mels, frames = features.shape if len(features.shape) == 3 else (0, 0, 0)
        if self._is_upright:
            mels, frames = frames, mels
        fits, wanted = self._fit(rows, frames)
        if features.dtype != "float32" or mels != self._mels or not fits:
            raise UnfitImage(
                f"{FEATURES} is {features.dtype} {list(features.shape)}, but the encoder takes float32 {wanted}"
            )
        if (mask.dtype, mask.shape) != ("bool", (rows, frames)):
            raise UnfitImage(f"{mask.name} must be bool {[rows, frames]}, but is {mask.dtype} {list(mask.shape)}")
        present = np.frombuffer(mask.data, np.uint8).reshape(rows, frames)
        if present.max() > 1 or (np.diff(present.astype(np.int8)) > 0).any() or not present[:, 0].all():
            raise UnfitImage(f"{mask.name} must be true from the start of each row on, and then false to its end")
        return features, mask

    def _fit(self, rows: int, frames: int) -> tuple[bool, str]:
        """Whether the encoder takes so many rows of so many frames, and the shapes that it takes."""
        if self._is_upright:
            return rows == 1 and 0 < frames <= self._most_frames, f"[1, up to {self._most_frames}, {self._mels}]"
        if self._window:
            return rows == 1 and frames > 0 and frames % self._window == 0, f"[1, {self._mels}, n * {self._window}]"
        return rows > 0 and frames == self._frames, f"[rows, {self._mels}, {self._frames}]"
