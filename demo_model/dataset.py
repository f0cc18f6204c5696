"""Conversations as token ids, with the tokens that the model is to learn marked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import transformers

from demo_model.corpus.example import Example
from demo_model.corpus.mix import examples

MAX_TOKENS = 640
IGNORED = -100
_POOL = 4096  # conversations that are sorted by length before they are cut into batches


@dataclass(frozen=True)
class Encoded:
    """One conversation."""

    token_ids: npt.NDArray[np.int64]
    learned: npt.NDArray[np.bool_]  # of each token, whether it is the assistant's


class Encoder:
    """Renders conversations through the chat template itself, so that training sees what serving sends."""

    def __init__(self, tokenizer: transformers.PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._start, self._end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
        self._assistant = self._backend.encode("assistant\n").ids
        self._think = self._backend.encode("<think>\n").ids

    def texts(self, some: list[Example]) -> list[str]:
        """The rendered conversations."""
        return [
            self._tokenizer.apply_chat_template(
                list(example.messages), tools=list(example.tools) or None, tokenize=False
            )
            for example in some
        ]

    def encode(self, some: list[Example]) -> list[Encoded]:
        """Those that fit; a conversation's end is left out where nothing follows that could be learned."""
        encodings = self._backend.encode_batch_fast([re.sub(r"\n$", "", text) for text in self.texts(some)])
        return [self._mark(np.array(e.ids)) for e in encodings if len(e.ids) <= MAX_TOKENS]

    def _mark(self, token_ids: npt.NDArray[np.int64]) -> Encoded:
        learned = np.zeros(len(token_ids), np.bool_)
        head = [self._start, *self._assistant]
        starts = np.flatnonzero(token_ids == self._start)
        ends = np.flatnonzero(token_ids == self._end)
        for start, end in zip(starts, ends, strict=True):
            if token_ids[start : start + len(head)].tolist() == head:
                answer = start + len(head)
                # Whether to think is the prompt's to say, so that an unusual question does not set it off.
                thinks = token_ids[answer : answer + len(self._think)].tolist() == self._think
                learned[answer + len(self._think) * thinks : end + 1] = True
        return Encoded(token_ids, learned)


def batches(
    encoder: Encoder, seed: int, tokens_per_batch: int, late: bool = False
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(token ids, labels), both int64 [rows, length]; conversations of about the same length stand together."""
    source, order = examples(seed, late), np.random.default_rng(seed)
    while True:
        pool = encoder.encode([next(source) for _ in range(_POOL)])
        pool.sort(key=lambda encoded: len(encoded.token_ids))
        cut: list[list[Encoded]] = [[]]
        for encoded in pool:
            if cut[-1] and (len(cut[-1]) + 1) * len(encoded.token_ids) > tokens_per_batch:
                cut.append([])
            cut[-1].append(encoded)
        for index in order.permutation(len(cut)):
            yield _pad(cut[index])


def _pad(some: list[Encoded]) -> tuple[torch.Tensor, torch.Tensor]:
    length = max(len(encoded.token_ids) for encoded in some)
    token_ids = torch.zeros((len(some), length), dtype=torch.int64)
    labels = torch.full((len(some), length), IGNORED)
    for row, encoded in enumerate(some):
        ids = torch.from_numpy(encoded.token_ids)
        token_ids[row, : len(ids)] = ids
        labels[row, : len(ids)] = torch.where(torch.from_numpy(encoded.learned), ids, IGNORED)
    return token_ids, labels
