"""Decides whether weights of some layers are offloaded to host memory; see layers/host_weights.py."""

from __future__ import annotations

import logging

import torch

from engine_svc.layers.host_weights import HostWeights, copies_to
from engine_svc.models.decoder import Decoder
from quire.errors import StartupError
from quire.options.engine import EngineOptions

logger = logging.getLogger(__name__)


def host_weights_of(model: Decoder, options: EngineOptions, device: torch.device) -> HostWeights | None:
    """The object that offloads weights of some layers. None means all weights stay on the device.

    Raises:
        StartupError: other options conflict with offloading.
    """
    group = options.cache.offloaded_layers()
    flag = "--offload-group-size" if group else "--cpu-offload-gb"
    if not (group or options.cache.cpu_offload_gb):
        return None
    if (copies := copies_to(device)) is None:
        logger.warning("%s has no effect: on a CPU, weights are in host memory anyway", flag)
        return None
    apart = {
        "--enable-eplb, which moves experts among ranks": options.parallel.experts.enable_eplb,
        "--enable-dbo, whose halves are in different layers at a time": options.parallel.dual_batch.enable_dbo,
    }
    if given := [what for what, is_given in apart.items() if is_given]:
        raise StartupError(f"{flag} cannot be combined with {given[0]}: leave one of them out.")
    return HostWeights(list(model.layers.values()), int(options.cache.cpu_offload_gb * 2**30), copies, group)
