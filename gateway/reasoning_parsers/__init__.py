"""Reasoning formats: one module each, with a `ReasoningParser` that turns content into `Reasoning`."""

from __future__ import annotations

from collections.abc import Mapping

from quire.options.reasoning import REASONING_PARSERS as NAMES
from quire.registry import registry

_TAGS = "gateway.reasoning_parsers.tags:"

# Name → module:class.
REASONING_PARSERS: Mapping[str, str] = registry(
    "--reasoning-parser",
    NAMES,
    {
        "cohere_command3": _TAGS + "CohereTags",
        "cohere_command4": _TAGS + "CohereTags",
        "deepseek_r1": _TAGS + "AlwaysThinkTags",
        "deepseek_v3": _TAGS + "ThinkTags",
        "deepseek_v4": _TAGS + "ThinkTagsOrCalls",
        "deepseek_v41": _TAGS + "ThinkTagsOrSpacedCalls",
        "ernie45": "gateway.reasoning_parsers.answer_tags:ThinkAndResponseTags",
        "gemma4": _TAGS + "GemmaChannel",
        "glm4_moe": _TAGS + "ThinkTags",
        "glm45": _TAGS + "ThinkTags",
        "glm47": _TAGS + "ThinkTags",
        "granite": "gateway.reasoning_parsers.sentences:GraniteSentences",
        "holo2": _TAGS + "ThinkTags",
        "hunyuan_a13b": "gateway.reasoning_parsers.answer_tags:ThinkAndAnswerTags",
        "hy_v3": _TAGS + "HunyuanTags",
        "hy_v4": _TAGS + "Hunyuan4Tags",
        "kimi_k2": _TAGS + "ThinkTags",
        "kimi_k3": "gateway.reasoning_parsers.channels:KimiChannels",
        "ling3": _TAGS + "ThinkTags",
        "mimo": _TAGS + "ThinkTags",
        "minimax_m2": _TAGS + "AlwaysThinkTags",
        "minimax_m2_append_think": "gateway.reasoning_parsers.inline:ThinkInContent",
        "minimax_m3": _TAGS + "MiniMaxTags",
        "mistral": _TAGS + "BracketTags",
        "nemotron_v3": _TAGS + "ThinkTags",
        "olmo3": _TAGS + "ThinkTags",
        "openai_gptoss": "gateway.reasoning_parsers.harmony:HarmonyChannels",
        "poolside_v1": _TAGS + "ThinkTags",
        "qwen3": _TAGS + "ThinkTags",
        "seed_oss": _TAGS + "SeedTags",
        "solar_open2": _TAGS + "SolarTags",
        "step3": _TAGS + "AlwaysThinkTags",
        "step3p5": _TAGS + "AlwaysThinkTags",
    },
)
