"""Why an image, a video or an audio cannot be prepared."""

from __future__ import annotations


class MediaRejection(Exception):
    """An image, a video or an audio cannot be prepared; the message is for the caller."""

    def __init__(self, message: str, parameter: str = "") -> None:
        """
        Args:
            parameter: the request's field that is at fault, unless it is the file.
        """
        super().__init__(message)
        self.parameter = parameter
