"""Custom logits processors of operators and requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from engine_svc.sampling.stages.base import LogitsStage, SlotSequence, StageRows
from engine_svc.sampling.stages.edits import LogitEdits
from engine_svc.sampling.stages.places import checked_ids
from engine_svc.transfer import to_device
from quire.logits_processor import LogitsProcessor, load_class
from quire.sampling import LogitsProcessorCall

_LEAST_ROOM = 64


@dataclass(eq=False)
class _Own:
    """State of one slot."""

    processors: list[LogitsProcessor]
    num_unknown_tokens: int  # leading tokens that processors do not see
    num_prompt_tokens: int  # prompt tokens that they see
    known: torch.Tensor  # int64 [capacity] on the device: the known tokens, with spare room


@dataclass(frozen=True)
class _Recorder:
    """Writes sampled tokens to the slots' known tokens; see Recorder."""

    places: list[tuple[torch.Tensor, int, int]]  # (known tokens of a slot, index of the next one, its row)

    def record(self, token_ids: torch.Tensor) -> None:
        """See Recorder.record."""
        for known, place, row in self.places:
            known[place] = token_ids[row]


class CustomProcessors(LogitsStage):
    """Runs the operator's processors for each sequence, and then those that its request names."""

    is_sequential = True
    takes_parts = False  # processors need whole rows

    def __init__(
        self,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device,
        classes: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        """
        Args:
            classes: processor classes of the operator.
        """
        self._vocab_size = vocab_size
        self._device = device
        self._classes = classes
        self._own: dict[int, _Own] = {}  # by slot

    def add(self, slot: int, sequence: SlotSequence) -> bool:
        """See LogitsStage.add."""
        wanted = sequence.plan.parameters
        xargs: Mapping[str, Any] = msgspec.json.decode(wanted.vllm_xargs or b"{}") if self._classes else {}
        made = [kind.for_request(xargs) for kind in self._classes]
        processors = [processor for processor in made if processor is not None]
        processors += [make_processor(call) for call in wanted.logits_processors]
        if not processors:
            return False
        unknown = sequence.num_unknown_tokens
        known = to_device(checked_ids(sequence.token_ids[unknown:], self._vocab_size), self._device)
        self._own[slot] = _Own(processors, unknown, sequence.num_prompt_tokens - unknown, known)
        return True

    def apply(self, edits: LogitEdits, rows: StageRows) -> _Recorder:
        """See LogitsStage.apply."""
        places = []
        for row, slot, num_tokens in zip(rows.rows, rows.slots, rows.num_tokens, strict=True):
            own = self._own[slot]
            num_known = num_tokens - own.num_unknown_tokens
            known = _with_room(own, num_known + 1)
            logits = edits.row(row)
            for processor in own.processors:
                logits = processor.apply(known[:num_known], own.num_prompt_tokens, logits)
                self._check(processor, logits)
            edits.write_row(row, logits)
            places.append((known, num_known, row))
        return _Recorder(places)

    def _check(self, processor: LogitsProcessor, logits: object) -> None:
        if not isinstance(logits, torch.Tensor) or logits.shape != (self._vocab_size,):
            shape = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise ValueError(f"{type(processor).__name__} returned {shape} in place of logits [{self._vocab_size}]")


def make_processor(call: LogitsProcessorCall) -> LogitsProcessor:
    """Creates the processor that a request names.

    Raises:
        ValueError: there is no such class. Others: whatever the class raises for these arguments.
    """
    return load_class(call.qualname)(*msgspec.json.decode(call.args), **msgspec.json.decode(call.kwargs))


def _with_room(own: _Own, size: int) -> torch.Tensor:
    """The slot's tokens, with capacity for at least `size`; the capacity doubles when it grows."""
    missing = size - len(own.known)
    if missing > 0:
        own.known = torch.nn.functional.pad(own.known, (0, max(missing, len(own.known), _LEAST_ROOM)))
    return own.known
