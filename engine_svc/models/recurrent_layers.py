"""Creates a recurrent layer from its configuration."""

from __future__ import annotations

from engine_svc.layers.context import LayerContext
from engine_svc.models.delta_net import DELTA_NETS
from engine_svc.models.gated_units import GatedUnits
from engine_svc.models.lightning import LightningAttention
from engine_svc.models.mamba import Mamba
from engine_svc.models.mamba2 import Mamba2
from engine_svc.models.recurrent import RecurrentLayer
from engine_svc.models.recurrent_config import (
    GatedUnitsConfig,
    LightningConfig,
    Mamba2Config,
    MambaConfig,
    RecurrentConfig,
    ShortConvolutionConfig,
)
from engine_svc.models.short_convolution import ShortConvolution


def recurrent_layer(hidden_size: int, config: RecurrentConfig, context: LayerContext) -> RecurrentLayer:
    """Creates the layer.

    Raises:
        ValueError: it cannot be divided among the ranks.
    """
    if isinstance(config, MambaConfig):
        return Mamba(hidden_size, config, context)
    if isinstance(config, Mamba2Config):
        return Mamba2(hidden_size, config, context)
    if isinstance(config, ShortConvolutionConfig):
        return ShortConvolution(hidden_size, config, context)
    if isinstance(config, LightningConfig):
        return LightningAttention(hidden_size, config, context)
    if isinstance(config, GatedUnitsConfig):
        return GatedUnits(hidden_size, config, context)
    return DELTA_NETS[config.form](hidden_size, config, context)
