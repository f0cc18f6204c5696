"""Options of the engine worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.options.cache import CacheOptions
from quire.options.generation import GenerationOptions
from quire.options.kernels import KernelOptions
from quire.options.load import LoadOptions
from quire.options.log_stats import LogStatsOptions
from quire.options.lora import LoraOptions
from quire.options.model_form import ModelFormOptions
from quire.options.multimodal import ImageEncoderOptions
from quire.options.parallel import ParallelOptions
from quire.options.pooling import PoolingOptions
from quire.options.registration import RegistrationOptions
from quire.options.scheduler import SchedulerOptions
from quire.options.speculative import SpeculativeOptions
from quire.options.upkeep import UpkeepOptions
from quire.options.watchdog import WatchdogOptions
from quire.options.watermark import WatermarkOptions


@dataclass(frozen=True)
class EngineOptions:
    """The options of one worker: a group for each of its components."""

    form: ModelFormOptions = ModelFormOptions()
    pooling: PoolingOptions = PoolingOptions()
    generation: GenerationOptions = GenerationOptions()
    watermark: WatermarkOptions = field(default_factory=WatermarkOptions)
    load: LoadOptions = LoadOptions()
    kernels: KernelOptions = KernelOptions()
    cache: CacheOptions = CacheOptions()
    scheduler: SchedulerOptions = SchedulerOptions()
    speculative: SpeculativeOptions = SpeculativeOptions()
    lora: LoraOptions = LoraOptions()
    images: ImageEncoderOptions = ImageEncoderOptions()
    parallel: ParallelOptions = ParallelOptions()
    upkeep: UpkeepOptions = UpkeepOptions()
    watchdog: WatchdogOptions = WatchdogOptions()
    log_stats: LogStatsOptions = LogStatsOptions()
    registration: RegistrationOptions = RegistrationOptions()
