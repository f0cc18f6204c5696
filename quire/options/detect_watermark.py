"""Options of `quire detect-watermark`."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option


@dataclass(frozen=True)
class DetectWatermarkOptions:
    """Text to examine."""

    input_file: str = option("-", "File with the text, in UTF-8; - is the standard input.", metavar="PATH")
    token_ids: bool = option(False, "The file is not text, but a JSON list of token ids.")
    p_value_threshold: float = option(
        0.01, "Text whose p-value is at most this counts as marked.", minimum=0.0, maximum=1.0
    )
