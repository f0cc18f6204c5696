"""Fields that OpenAI's Responses API and Anthropic's API share with chats, by the same names.

Each field of a chat works in all three APIs, or is refused by name: none is ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from gateway.protocol.common import ConversationFields
from gateway.requests.refused import check_refused
from quire.compatibility.refused_fields import Refused

_ONE_ANSWER = "an answer of this API is one message"
_NO_PLACE = "answers of this API have no place for it; /v1/chat/completions has"
# Refused in both of the other APIs. What a chat refuses is refused where the converted request is checked.
_ONLY_IN_CHATS: Mapping[str, Refused] = MappingProxyType(
    {
        "n": Refused(_ONE_ANSWER, (1,)),
        "best_of": Refused(_ONE_ANSWER, (1,)),
        "use_beam_search": Refused(_ONE_ANSWER, (False,)),
        "echo": Refused(_ONE_ANSWER, (False,)),
        "prompt_logprobs": Refused(_NO_PLACE),
        "routed_experts_prompt_start": Refused(_NO_PLACE, (0,)),
        "return_token_ids": Refused(_NO_PLACE, (False,)),
        "return_prompt_text": Refused(_NO_PLACE, (False,)),
        "return_weight_versions": Refused(_NO_PLACE, (False,)),
        "stream_interval": Refused("events of this API are not combined; --stream-interval is for chats", (1,)),
    }
)


def check_shared(body: ConversationFields, others: Mapping[str, Refused]) -> None:
    """
    Args:
        others: fields that this API refuses, besides those that both refuse.

    Raises:
        InvalidRequest: a field asks for what this API does not have; names the first one.
    """
    check_refused(body, {**_ONLY_IN_CHATS, **others})


def shared_fields(body: ConversationFields, without: Collection[str]) -> dict[str, Any]:
    """Returns the fields to pass on to the chat request.

    Args:
        without: fields that the API refuses, or that the chat request gets from others.
    """
    return {name: getattr(body, name) for name in ConversationFields.__struct_fields__ if name not in without}
