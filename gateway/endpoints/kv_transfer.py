"""What requests and answers say about KV blocks that another deployment has or pulls; see requests/kv_transfer.py."""

from __future__ import annotations

from dataclasses import replace

from msgspec import UNSET, UnsetType

from gateway.context import GatewayContext
from gateway.protocol.common import KvTransferParams
from gateway.requests.generation_request import GenerationRequest
from gateway.requests.state import RequestState
from quire.errors import InvalidRequest


def taking_part(
    context: GatewayContext, params: KvTransferParams | None, generation: GenerationRequest
) -> GenerationRequest:
    """Adds to a request what its parameters ask for.

    Raises:
        InvalidRequest: this server does not exchange blocks with others, or none of its workers can; the request has
            several prompts, which several workers may compute, or is a beam search; or the parameters are wrong, see
            KvTransferKey.transfer.
    """
    if params is None or not (params.do_remote_decode or params.do_remote_prefill):
        return generation
    if context.kv_transfer_key is None:
        raise _refusal("this server does not exchange KV blocks with others (--enable-kv-transfer-params)")
    transfer = context.kv_transfer_key.transfer(params)
    if not (context.fleet.lets_pull if transfer.remote_decode else context.fleet.pulls):
        roles = "kv_producer or kv_both" if transfer.remote_decode else "kv_consumer or kv_both"
        raise _refusal(f"it needs engine workers with GrpcConnector and kv_role {roles} (--kv-transfer-config)")
    if generation.beams or len(generation.prompts) > 1:
        raise _refusal("it is for a single prompt and its choices, and not for a beam search")
    return replace(generation, kv_transfer=transfer)


def _refusal(why: str) -> InvalidRequest:
    return InvalidRequest(f"kv_transfer_params is refused: {why}.", parameter="kv_transfer_params")


def told(context: GatewayContext, state: RequestState) -> KvTransferParams | UnsetType | None:
    """Returns what the answer says: where the prompt's blocks are, if the request asks for that; None if nowhere."""
    if not state.request.kv_transfer.remote_decode or context.kv_transfer_key is None:
        return UNSET
    return context.kv_transfer_key.params(state.kv_source) if state.kv_source else None
