"""The request that a worker gets, compared with what the caller sent."""

from __future__ import annotations

import pytest

from quire.v1 import common_pb2
from router.workers.assignment import Assignment, ChoiceProgress
from router.workers.convert import most_bytes, write_assignment

SENT = common_pb2.Generation(
    model="chat", request_id="r", prompt_token_ids=range(500), progress=[common_pb2.ChoiceProgress(token_ids=[7])]
)


@pytest.mark.parametrize("tokens", [None, [], [2**32 - 1] * 1000])
def test_the_caller_s_message_stays_and_the_copy_says_the_rest(tokens: list[int] | None) -> None:
    progress = None if tokens is None else [ChoiceProgress(tokens, finished=True)] * 3
    assignment = Assignment(SENT, "org/model-of-some-length", 2**63 - 1, progress)
    before = SENT.SerializeToString()
    copy = common_pb2.Generation()
    copy.CopyFrom(SENT)
    write_assignment(assignment, 2**40, copy)
    assert SENT.SerializeToString() == before
    assert (copy.model, copy.sampling.seed, copy.timeout_ms) == ("org/model-of-some-length", 2**63 - 1, 2**40)
    assert [list(each.token_ids) for each in copy.progress] == ([[7]] if tokens is None else [tokens] * 3)
    assert copy.ByteSize() <= most_bytes(assignment)
