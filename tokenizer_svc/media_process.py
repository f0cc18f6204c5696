"""The child process that prepares images, videos and audio (see `child`)."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.media import MediaKind
from tokenizer_svc.av_container import prepare as prepare_av
from tokenizer_svc.child import Answer, Message, run
from tokenizer_svc.media_rejection import MediaRejection

if TYPE_CHECKING:
    import numpy.typing as npt

    from tokenizer_svc.audio_processor import AudioProcessor
    from tokenizer_svc.image_processor import ImageProcessor
    from tokenizer_svc.mistral_media import MistralImages
    from tokenizer_svc.processed import Processed
    from tokenizer_svc.video_processor import VideoProcessor
    from tokenizer_svc.video_sound import VideosWithSound

    Images = ImageProcessor | MistralImages

_MOST_CHARACTERS = 2000  # of an error


class _Processors:
    """Those of the model: of images and maybe videos, of audio, or of all."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        """
        Args:
            setup: see MediaPreparer.

        Raises: various exceptions if Transformers cannot load them.
        """
        self._images: Images | None = None
        self._audio: AudioProcessor | None = None
        if of_mistral := setup.get("of_mistral"):
            from tokenizer_svc.mistral_media import load_mistral_media

            self._images, self._audio = load_mistral_media(of_mistral)
        else:
            self._load(Path(setup["folder"]), setup.get("video_pruning_rate", 0.0))
        self._videos: VideoProcessor | None = self._images.videos if self._images else None
        self._with_sound: VideosWithSound | None = None
        if self._videos is not None and self._audio is not None and self._audio.order is not None:
            from tokenizer_svc.video_sound import VideosWithSound

            self._with_sound = VideosWithSound(self._videos, self._audio, self._audio.order)

    def _load(self, folder: Path, video_pruning_rate: float) -> None:
        from tokenizer_svc.audio_processor import load_audio_processor  # imports Transformers

        self._audio = load_audio_processor(folder)
        if self._audio is None or self._audio.sees:
            from tokenizer_svc.image_processor import ImageProcessor

            self._images = ImageProcessor(folder, video_pruning_rate)

    def facts(self, settings: Mapping[str, Any]) -> Message:
        """How prompts mark media: the placeholder, the text for it where a template takes strings, and the token.

        Args:
            settings: of all images and videos; `fault` tells why they do not suit the processor.
        """
        marks: dict[str, Any] = {}
        if (images := self._images) is not None:
            marks[MediaKind.IMAGE] = [
                images.placeholder, images.placeholder.join(images.around), images.image_token_id
            ]  # fmt: skip
        if (videos := self._videos) is not None and images is not None:
            marks[MediaKind.VIDEO] = [videos.placeholder, videos.placeholder.join(images.around), videos.token_id]
        if (audio := self._audio) is not None:
            marks[MediaKind.AUDIO] = [audio.placeholder, audio.wrapped, audio.token_id]
        own = {MediaKind.IMAGE: images, MediaKind.AUDIO: audio}
        fault = self._fault(images, settings) if images is not None and settings else ""
        return Message({
            "marks": marks, "mark_ids": {kind: [*each.mark_ids] for kind, each in own.items() if each is not None},
            "can_prune": videos is not None and videos.can_prune, "fault": fault,
        })  # fmt: skip

    def split(self, request: Message) -> Message:
        """The samples of a recording, and where each of its pieces ends. Without samples if it is a single one.

        Raises:
            MediaRejection: see AudioProcessor.split.
        """
        assert self._audio is not None
        samples, ends = self._audio.split(request.payload, request.fields["most_seconds"])
        return Message({"rate": self._audio.rate, "ends": ends}, samples.tobytes() if len(ends) > 1 else b"")

    def prepare_part(self, request: Message) -> Message:
        """A part of a recording that is still coming: see MistralLiveAudio.prepare_part."""
        import numpy as np  # once it knows how many threads it may have

        from tokenizer_svc.mistral_media import MistralLiveAudio

        assert isinstance(self._audio, MistralLiveAudio)
        samples = np.frombuffer(request.payload, "<i2")
        inputs, num_tokens, num_used = self._audio.prepare_part(samples, **request.fields["live"])
        return _message({"num_tokens": num_tokens, "num_used": num_used}, inputs)

    def prepare(self, request: Message) -> Processed:
        """
        Raises:
            MediaRejection: see the processors.
        """
        kind, settings = request.fields["kind"], request.fields["settings"]
        if names := request.fields.get("tensors"):
            return self._prepare_embeds(dict(zip(names, _files(request), strict=True)))
        if kind == MediaKind.AUDIO:
            assert self._audio is not None
            # Of models that also see, settings are for what they see.
            return self._audio.prepare(request.payload, {} if self._images is not None else settings)
        if kind == MediaKind.IMAGE:
            assert self._images is not None
            return self._images.prepare(request.payload, self._of_images(settings))
        assert self._videos is not None
        return (self._with_sound or self._videos).prepare(_files(request), settings, request.fields["reading"])

    def _prepare_embeds(self, tensors: Mapping[str, bytes]) -> Processed:
        """
        Raises:
            MediaRejection: see `prepare_embeds`.
        """
        from tokenizer_svc.image_embeds import prepare_embeds
        from tokenizer_svc.image_processor import ImageProcessor

        if not isinstance(self._images, ImageProcessor):
            raise MediaRejection("image_embeds: --tokenizer-mode mistral takes images only. Send the image.")
        return prepare_embeds(tensors, self._images.sample, self._images.image_token)

    def _of_images(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those that are not about the sound of videos.

        Raises:
            MediaRejection: see VideosWithSound.split.
        """
        return settings if self._with_sound is None else self._with_sound.split(settings)[1]

    def _fault(self, images: Images, settings: Mapping[str, Any]) -> str:
        try:
            images.check(self._of_images(settings))
        except MediaRejection as error:
            return str(error)[:_MOST_CHARACTERS]
        return ""


def _files(request: Message) -> list[bytes]:
    """The files in a request's payload."""
    ends = [*itertools.accumulate(request.fields["sizes"])]
    return [request.payload[start:end] for start, end in itertools.pairwise([0, *ends])]


def make(setup: Message) -> Answer:
    """Returns the function that prepares the media in a message's payload, or reports how prompts mark them.

    The fields of a message are the `kind`, the `sizes` of the files, the names of the `tensors` that they are (if any),
    and the `settings` and `reading` of `VideoProcessor.prepare`; or only the `most_seconds` of a recording to cut into
    pieces, or `live`, what is known of a part of a recording that is still coming.
    """
    processors = _Processors(setup.fields)
    prepare_av()

    def answer(request: Message) -> Message:
        if not request.fields:
            return processors.facts(setup.fields.get("settings", {}))
        try:
            if "live" in request.fields:
                return processors.prepare_part(request)
            if "most_seconds" in request.fields:
                return processors.split(request)
            found = processors.prepare(request)
        except MediaRejection as error:
            return Message({"error": str(error)[:_MOST_CHARACTERS], "parameter": error.parameter})
        fields = {
            "text": found.text, "num_tokens": found.num_tokens, "pixel_scale": found.pixel_scale,
            "pixel_shift": found.pixel_shift, "seconds": found.seconds, "number_marks": found.number_marks,
        }  # fmt: skip
        return _message(fields, found.inputs)

    return answer


def _message(fields: Mapping[str, Any], inputs: Mapping[str, npt.NDArray[Any]]) -> Message:
    """An answer with these inputs of an encoder."""
    forms = [(name, each.dtype.name, each.shape, each.nbytes) for name, each in inputs.items()]
    return Message({**fields, "inputs": forms}, b"".join(each.tobytes() for each in inputs.values()))


def _make(setup: Message) -> Answer:
    """`make` in a process of its own, which imports less."""
    # Transformers imports these where they are installed, which takes seconds and memory. It needs neither here, and
    # would advise to install torch.
    for name in ("torch", *(() if setup.fields.get("of_mistral") else ("mistral_common",))):
        sys.modules[name] = None  # type: ignore[assignment]  # means that it cannot be imported
    return make(setup)


if __name__ == "__main__":
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    # Each thread of a matrix product, one for each processor of a large machine, would take memory.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    run(_make)
