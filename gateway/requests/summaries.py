"""Summaries that stand for a conversation, as clients keep them: in an opaque text, which only Quire reads.

The text is not encrypted: its client has the conversation. A mark and a digest tell it from what other servers return,
and from one that was cut.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib

from quire.errors import InvalidRequest

_MARK = "quire-summary-1"
_DIGEST_CHARACTERS = 16


def sealed(summary: str) -> str:
    """Returns the text to give to the client."""
    content = base64.urlsafe_b64encode(summary.encode()).decode()
    return f"{_MARK}.{_digest(content)}.{content}"


def opened(text: str, place: str) -> str:
    """Returns the summary in a text.

    Args:
        place: where the text is in the request, for error messages.

    Raises:
        InvalidRequest: Quire has not written it.
    """
    mark, _, rest = text.partition(".")
    digest, _, content = rest.partition(".")
    with contextlib.suppress(binascii.Error, UnicodeDecodeError):
        if mark == _MARK and digest == _digest(content):
            return base64.urlsafe_b64decode(content).decode()
    raise InvalidRequest(
        f"{place} was not returned by /v1/responses/compact of Quire, or was changed: only the server that has "
        "compacted a conversation can read it. Send the conversation itself.",
        parameter="input",
    )


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:_DIGEST_CHARACTERS]
