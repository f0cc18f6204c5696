"""The tokenizer service's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from quire.v1 import tokenizer_pb2


class TokenizerMetrics:
    """Counters that the servicer updates."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.encoded_tokens = Counter("quire_tokenizer_encoded_tokens", "Tokens encoded from text.", registry=registry)
        self.rendered_conversations = Counter(
            "quire_tokenizer_rendered_conversations",
            "Conversations and text pairs rendered with a chat template.",
            registry=registry,
        )
        self._detokenized = Counter(
            "quire_tokenizer_detokenized_tokens", "Tokens decoded to text in live streams.", registry=registry
        )
        self._frames = Counter(
            "quire_tokenizer_session_frames", "Frames received in detokenization sessions.", registry=registry
        )

    def detokenized(self, frame: tokenizer_pb2.DetokenizeSessionRequest) -> None:
        """Counts a frame of a session, and its tokens."""
        self._frames.inc()
        self._detokenized.inc(sum(len(tokens.token_ids) for tokens in frame.tokens))

    def watch_streams(self, num_streams: Callable[[], int]) -> None:
        """Publishes the number of open streams."""
        gauge = Gauge("quire_tokenizer_open_streams", "Sequences being detokenized.", registry=self._registry)
        gauge.set_function(num_streams)
