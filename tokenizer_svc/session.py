"""Detokenizes all live sequences of one caller."""

from __future__ import annotations

import logging

from quire.bounds import MAX_STOP_STRING_LENGTH, MAX_STOP_STRINGS
from quire.errors import InvalidRequest
from quire.rpc.sampling import to_marks
from quire.v1 import tokenizer_pb2
from tokenizer_svc.sequence import TextSequence
from tokenizer_svc.text import TextCodec

logger = logging.getLogger(__name__)

MAX_STREAMS = 65536
MAX_CONTEXT_TOKENS = 64
MAX_KEPT_TOKENS = 64
_TROUBLE = "These tokens cannot be detokenized; the log of the tokenizer service has the details."


class DetokenizeSession:
    """One caller's sequences. Each incoming frame yields one outgoing frame, with one delta for each of its
    DetokenizeTokens."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._streams: dict[int, TextSequence] = {}
        # Streams that could not be opened → reason, reported in answer to their first tokens.
        self._refused: dict[int, str] = {}

    @property
    def num_streams(self) -> int:
        """Number of open sequences."""
        return len(self._streams)

    def answer(self, frame: tokenizer_pb2.DetokenizeSessionRequest) -> tokenizer_pb2.DetokenizeSessionResponse:
        """Processes a frame: opens first, then tokens, then closes."""
        response = tokenizer_pb2.DetokenizeSessionResponse()
        for opening in frame.opens:
            self._open(opening)
        for tokens in frame.tokens:
            self._add(tokens, response.deltas.add(stream_id=tokens.stream_id))
        for stream_id in frame.close_stream_ids:
            self._streams.pop(stream_id, None)
            self._refused.pop(stream_id, None)
        return response

    def _open(self, opening: tokenizer_pb2.DetokenizeOpen) -> None:
        problem = self._problem(opening) or self._try_open(opening)
        if problem and len(self._refused) < MAX_STREAMS:
            self._refused[opening.stream_id] = problem

    def _try_open(self, opening: tokenizer_pb2.DetokenizeOpen) -> str:
        """Opens a sequence; returns the reason if its history cannot be detokenized, else an empty string."""
        try:
            self._streams[opening.stream_id] = self._codec.open_sequence(
                skip_special_tokens=opening.skip_special_tokens,
                kept_special_tokens=opening.kept_special_tokens,
                join_special_tokens=opening.join_special_tokens,
                stop_strings=opening.stop_strings,
                include_stop_string=opening.include_stop_string,
                min_tokens=opening.min_tokens,
                reasoning=to_marks(opening.reasoning) if opening.HasField("reasoning") else None,
                context=opening.prompt_tail_token_ids,
                history=opening.history_token_ids,
            )
        except Exception:  # one failing sequence must not end the session with all others
            logger.exception("a sequence cannot be opened")
            return _TROUBLE
        return ""

    def _problem(self, opening: tokenizer_pb2.DetokenizeOpen) -> str:
        if opening.stream_id in self._streams:
            return f"stream_id {opening.stream_id} is already open; choose another."
        if len(self._streams) >= MAX_STREAMS:
            return f"This session already has {MAX_STREAMS} open streams; close some, or open another session."
        if len(opening.stop_strings) > MAX_STOP_STRINGS:
            return f"{len(opening.stop_strings)} stop_strings are too many; at most {MAX_STOP_STRINGS} are allowed."
        if not all(1 <= len(stop) <= MAX_STOP_STRING_LENGTH for stop in opening.stop_strings):
            return f"Each of stop_strings must have 1 to {MAX_STOP_STRING_LENGTH} characters."
        if len(opening.prompt_tail_token_ids) > MAX_CONTEXT_TOKENS:
            return f"prompt_tail_token_ids may have at most {MAX_CONTEXT_TOKENS} entries."
        if len(opening.kept_special_tokens) > MAX_KEPT_TOKENS:
            return f"kept_special_tokens may have at most {MAX_KEPT_TOKENS} entries."
        return _problem_of_marks(opening)

    def _add(self, tokens: tokenizer_pb2.DetokenizeTokens, delta: tokenizer_pb2.TextDelta) -> None:
        stream = self._streams.get(tokens.stream_id)
        if stream is None or tokens.stream_id in self._refused:
            self._streams.pop(tokens.stream_id, None)
            delta.error = self._refused.pop(tokens.stream_id, f"stream_id {tokens.stream_id} is not open.")
            return
        try:
            ended = self._detokenize(stream, tokens, delta)
        except Exception:  # see _try_open
            logger.exception("a sequence cannot go on")
            ended, delta.error = True, _TROUBLE
        if ended:
            del self._streams[tokens.stream_id]

    def _detokenize(
        self, stream: TextSequence, tokens: tokenizer_pb2.DetokenizeTokens, delta: tokenizer_pb2.TextDelta
    ) -> bool:
        """Fills in the delta; returns whether the sequence has ended with it."""
        ends = tokens.is_last and tokens.drop_last_token
        step = stream.add(tokens.token_ids[:-1] if ends else tokens.token_ids, tokens.is_last)
        delta.text = step.text
        if step.stop_string is not None:
            delta.stop_string = step.stop_string
            delta.tokens_used = step.tokens_used
        if tokens.lookup_token_ids:
            delta.lookup_token_bytes.extend(map(self._codec.token_bytes, tokens.lookup_token_ids))
            delta.text_lengths.extend(step.lengths)
        return tokens.is_last or step.stop_string is not None


def _problem_of_marks(opening: tokenizer_pb2.DetokenizeOpen) -> str:
    try:
        if opening.HasField("reasoning"):
            to_marks(opening.reasoning).check("reasoning")
    except InvalidRequest as error:
        return error.message
    return ""
