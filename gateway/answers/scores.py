"""Log-probabilities in OpenAI's formats."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from gateway.answers.deltas import PromptScore, TokenScore
from gateway.protocol.chat import ChatLogprobs, ChatTokenLogprob, TopLogprob
from gateway.protocol.common import PromptLogprob, PromptLogprobs
from gateway.protocol.completions import CompletionLogprobs
from gateway.protocol.generate import GeneratedLogprob, GenerateLogprobs, TokenLogprob
from quire.reasoning import ReasoningMarks, ReasoningTracker

# JSON has no infinity.
LEAST_LOGPROB = -9999.0
_encoder = msgspec.json.Encoder()


def token_text(token_id: int, raw: bytes, as_ids: bool) -> str:
    """Returns a token as shown in answers."""
    return f"token_id:{token_id}" if as_ids else raw.decode("utf-8", "replace")


def chat_logprobs(scores: Sequence[TokenScore], as_ids: bool) -> ChatLogprobs:
    """Builds the `logprobs` of a chat choice or chunk."""
    return ChatLogprobs([_chat_token(score, as_ids) for score in scores])


def _chat_token(score: TokenScore, as_ids: bool) -> ChatTokenLogprob:
    entries = [
        TopLogprob(token_text(token_id, raw, as_ids), max(logprob, LEAST_LOGPROB), list(raw))
        for token_id, logprob, raw in zip(score.token_ids, score.logprobs, score.texts, strict=True)
    ]
    own = entries[0]
    return ChatTokenLogprob(own.token, own.logprob, own.bytes, entries[1:])


class AnswerScores:
    """Removes the scores of reasoning from those of a choice, for requests that omit the reasoning."""

    def __init__(self, marks: ReasoningMarks) -> None:
        self._tracker = ReasoningTracker(marks)
        self._undecided: list[TokenScore] = []  # of tokens that may turn out to be a mark

    def take(self, token_ids: Sequence[int], scores: Sequence[TokenScore]) -> Sequence[TokenScore]:
        """Returns the scores of the answer among the next ones, once it is certain that they are."""
        found: list[TokenScore] = []
        for token_id, score in zip(token_ids, scores, strict=True):
            self._undecided.append(score)
            thought = self._tracker.thinks
            self._tracker.advance((token_id,))
            if self._tracker.answers:
                found += self._undecided
            if self._tracker.answers or thought or self._tracker.thinks:
                self._undecided.clear()
        return found


def token_logprobs(scores: Sequence[TokenScore], *, are_likeliest: bool) -> GenerateLogprobs:
    """Builds the `logprobs` of a choice in token ids.

    Args:
        are_likeliest: whether the alternatives are the most likely tokens in order, so that their ranks are known.
    """
    return GenerateLogprobs([_generated(score, are_likeliest) for score in scores])


def _generated(score: TokenScore, are_likeliest: bool) -> GeneratedLogprob:
    own, *others = zip(score.token_ids, (max(logprob, LEAST_LOGPROB) for logprob in score.logprobs), strict=True)
    top = [
        TokenLogprob(*entry, rank=rank if are_likeliest else None) for rank, entry in enumerate(others, 1)
    ]  # fmt: skip
    return GeneratedLogprob(*own, rank=score.rank, top_logprobs=top)


class CompletionScores:
    """Builds the `logprobs` of a completion choice; text offsets continue from chunk to chunk."""

    def __init__(self, as_ids: bool, offset: int = 0) -> None:
        """
        Args:
            offset: of the first position, in characters.
        """
        self._as_ids = as_ids
        self.offset = offset  # of the next position

    def take(self, scores: Sequence[TokenScore]) -> CompletionLogprobs:
        """Builds the logprobs of the next positions."""
        result = CompletionLogprobs([], [], [], [])
        for score in scores:
            raws = score.texts or (b"",) * len(score.token_ids)
            texts = [token_text(i, raw, self._as_ids) for i, raw in zip(score.token_ids, raws, strict=True)]
            logprobs = [max(logprob, LEAST_LOGPROB) for logprob in score.logprobs]
            top = dict(zip(texts[::-1], logprobs[::-1], strict=True))
            self._append(result, texts[0], score.text_length, logprobs[0], top)
        return result

    def take_prompt(self, text: str, token_id: int, raw: bytes, scores: Sequence[TokenScore]) -> CompletionLogprobs:
        """Builds the logprobs of all positions of a prompt.

        Args:
            text: the prompt's text as shown in the answer.
            token_id, raw: its first token, which has no logprob.
            scores: of the other tokens.
        """
        pieces = pieces_of(text, [raw, *(score.texts[0] for score in scores)])
        characters = codecs.getincrementaldecoder("utf-8")("replace")  # a character may span several tokens
        length, *lengths = (len(characters.decode(piece)) for piece in pieces)
        first = CompletionLogprobs([], [], [], [])
        self._append(first, token_text(token_id, raw, self._as_ids), length, None, None)
        others = [
            msgspec.structs.replace(score, text_length=length) for score, length in zip(scores, lengths, strict=True)
        ]
        result = merge([first, self.take(others)])
        self.offset = len(text)
        return result

    def _append(
        self, result: CompletionLogprobs, text: str, length: int, logprob: float | None, top: dict[str, float] | None
    ) -> None:
        result.text_offset.append(self.offset)
        result.tokens.append(text)
        result.token_logprobs.append(logprob)
        result.top_logprobs.append(top)
        self.offset += length


def pieces_of(text: str, tokens: Sequence[bytes]) -> Sequence[bytes]:
    """Returns the part of the text that each token stands for.

    It is empty for special tokens around the text and for the space that some vocabularies prepend. If the tokens spell
    a different text, as after normalization, returns the tokens unchanged.
    """
    for space in (b"", b" "):
        whole, at = space + text.encode(), 0
        found: list[bytes] = []
        for token in tokens:
            piece = token if whole.startswith(token, at) else b""
            found.append(piece if at else piece.removeprefix(space))
            at += len(piece)
        if at == len(whole):
            return found
    return tokens


def merge(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """Concatenates several logprobs."""
    result = CompletionLogprobs([], [], [], [])
    for part in parts:
        result.text_offset += part.text_offset
        result.token_logprobs += part.token_logprobs
        result.tokens += part.tokens
        result.top_logprobs += part.top_logprobs
    return result


def score_of(position: PromptScore, texts: Mapping[int, bytes]) -> TokenScore:
    """Fills in the tokens' texts at a position of the prompt."""
    own_texts = tuple(texts[token_id] for token_id in position.token_ids)
    return TokenScore(position.token_ids, position.logprobs, own_texts, position.rank)


def prompt_logprobs(positions: Sequence[PromptScore], texts: Mapping[int, bytes]) -> PromptLogprobs:
    """Builds vLLM's `prompt_logprobs`: null for the first token, then token id → entry for each.

    Encoded as JSON position by position, because together they are millions of objects.
    """
    found = (_encoder.encode(_position(position, texts)) for position in positions)
    return cast("PromptLogprobs", msgspec.Raw(b"[null" + b"".join(b"," + entry for entry in found) + b"]"))


def _position(position: PromptScore, texts: Mapping[int, bytes]) -> dict[str, PromptLogprob]:
    own, *others = position.token_ids
    ranks = {token_id: rank for rank, token_id in enumerate(others, 1)} | {own: position.rank}
    return {
        str(token_id): PromptLogprob(
            max(logprob, LEAST_LOGPROB), ranks[token_id], texts[token_id].decode("utf-8", "replace")
        )
        for token_id, logprob in zip(position.token_ids, position.logprobs, strict=True)
    }
