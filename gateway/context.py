"""The components that endpoints use; created once and passed to them through the application's state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from gateway.answers.parser import AnswerParser
from gateway.api_keys import ApiKeys
from gateway.media.conversations import ConversationMedia
from gateway.metrics.http import HttpStatistics
from gateway.pipeline import Pipeline
from gateway.protocol.unknown import LeftOutTools, UnknownFields
from gateway.requests.choice_room import ChoiceRoom
from gateway.requests.kv_transfer import KvTransferKey
from gateway.requests.realtime_sessions import RealtimeSessions
from gateway.requests.statistics import RequestStatistics
from gateway.requests.token_ids_only import needs_text
from gateway.response_store.records import Responses
from gateway.services.fleet import Fleet
from gateway.services.reasoning import ReasoningFormat
from gateway.services.speech import SpeechFormats
from gateway.services.tokenizer import Tokenizer
from gateway.tool_parsers.base import ToolParser
from quire.media import MAX_FILES_BYTES
from quire.memory_guard import MemoryGuard
from quire.options.gateway import GatewayOptions
from quire.tracing.base import Tracer
from quire.work_pool import WorkPool

_MAX_UPLOADS_BYTES = 2**30  # of all callers together
_TEXT_BODY_BYTES = 8 * 2**20
_MEDIA_BODY_BYTES = _TEXT_BODY_BYTES + MAX_FILES_BYTES * 4 // 3  # also has room for all files of a conversation


@dataclass
class GatewayContext:
    """The gateway's components."""

    options: GatewayOptions
    fleet: Fleet
    tokenizer: Tokenizer
    pipeline: Pipeline
    statistics: RequestStatistics
    large_requests: WorkPool  # threads for requests and answers of megabytes
    media: ConversationMedia
    speech: SpeechFormats
    api_keys: ApiKeys
    responses: Responses = field(default_factory=lambda: Responses(None))  # stored responses
    http_statistics: HttpStatistics = field(default_factory=HttpStatistics)
    realtime: RealtimeSessions = field(default_factory=RealtimeSessions)
    unknown_fields: UnknownFields = field(default_factory=UnknownFields)
    left_out_tools: LeftOutTools = field(default_factory=LeftOutTools)
    # Separates reasoning from content in chats; None for models without reasoning.
    reasoning: ReasoningFormat | None = None
    # Parse the text of chats in this order, after the reasoning parser has taken its part.
    parsers: Sequence[type[AnswerParser]] = ()
    # Parses tool calls, in chats that have tools.
    tool_parser: type[ToolParser] | None = None
    tracer: Tracer | None = None
    # None where requests may not have kv_transfer_params.
    kv_transfer_key: KvTransferKey | None = None
    memory: MemoryGuard = field(default_factory=MemoryGuard)
    draining: bool = False
    start_time: int = field(default_factory=lambda: int(time.time()))
    # For forms with files, until the tokenizer service has read them.
    uploads: ChoiceRoom = field(default_factory=lambda: ChoiceRoom(_MAX_UPLOADS_BYTES, "bytes of uploads"))

    def require_tokenizer(self, what: str, parameter: str = "") -> None:
        """
        Raises:
            InvalidRequest: `what` needs text, and the server was started without a tokenizer.
        """
        if self.options.skip_tokenizer_init:
            raise needs_text(what, parameter)

    @property
    def max_body_bytes(self) -> int:
        """Maximum size of a request body."""
        usual = _MEDIA_BODY_BYTES if self.fleet.reads_media else _TEXT_BODY_BYTES
        return self.options.max_body_bytes or usual

    @property
    def missing(self) -> list[str]:
        """Reasons why a request could not be served now; empty when it could be."""
        reasons = []
        if self.draining:
            reasons.append("the server is stopping")
        if self.memory.is_short:
            reasons.append("the server is short of memory")
        if not self.pipeline.router_streams.connected:
            reasons.append("the router cannot be reached")
        elif not self.fleet.ready:
            states = sorted({worker.reason or "unknown" for worker in self.fleet.workers})
            reasons.append(f"no engine worker is ready ({'; '.join(states) or 'none is known'})")
        if not self.pipeline.texts.replicas.connected:
            reasons.append("the tokenizer service cannot be reached")
        return reasons

    @property
    def ready(self) -> bool:
        """Whether a request could be served now."""
        return not self.missing


def context_of(request: HTTPConnection) -> GatewayContext:
    """Returns the context of the application that received the request."""
    context: GatewayContext = request.app.state.context
    return context
