"""Options of speculative decoding: tokens are drafted, and the model verifies several of them in one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import PurePath
from typing import Annotated, Any, ClassVar

import msgspec

from quire.bounds import MAX_SPECULATIVE_TOKENS
from quire.options.base import option
from quire.options.nearest import nearest

MTP = "mtp"
METHODS = ("ngram", "suffix", "draft_model", "eagle", "eagle3", MTP)
ACCEPTANCE_METHODS = ("rejection_sampler", "typical_acceptance_sampler")

# Methods that draft from tokens alone, on the control side; the others are models, which the ranks run.
LOOKUP_METHODS = frozenset({"ngram", "suffix"})
# Methods whose heads draft from the model's own embedding and its last layer's output.
HEAD_METHODS = frozenset({"eagle", MTP})

# Further names of methods in vLLM: a family's layers for multi-token prediction are recognized by its checkpoint.
METHOD_ALIASES: Mapping[str, str] = {
    "[ngram]": "ngram", "ngram_gpu": "ngram",
    **dict.fromkeys(
        (
            "deepseek_mtp", "glm4_moe_mtp", "glm4_moe_lite_mtp", "glm_ocr_mtp", "step3p5_mtp", "mimo_mtp",
            "mimo_v2_mtp", "ernie_mtp", "exaone_moe_mtp", "exaone4_5_mtp", "nemotron_h_mtp", "hy_v3_mtp", "hy_v4_mtp",
            "qwen3_next_mtp", "qwen3_5_mtp", "bailing_hybrid_mtp", "bailing_hybrid_v3_mtp",
        ),
        "mtp",
    ),
}  # fmt: skip

_TAKE_ANOTHER = "Use draft_model with a small checkpoint of the same family, eagle3 if there is a head, or suffix."
_NOT_OURS = (
    "Its models do not run on Quire's own layers (docs/models.md), which the layer shares with them. Use draft_model, "
    "ngram or suffix."
)

# Name → why it is refused, and what to use instead.
REFUSED_METHODS: Mapping[str, str] = {
    "medusa": f"Medusa's heads draft each position without seeing the previous draft token. {_TAKE_ANOTHER}",
    "mlp_speculator": f"Its network drafts from a single hidden state, and is no longer made. {_TAKE_ANOTHER}",
    "dflash": f"It drafts by diffusion, with layers that attend in both directions. {_TAKE_ANOTHER}",
    "dspark": f"It drafts by diffusion, with layers that attend in both directions. {_TAKE_ANOTHER}",
    "extract_hidden_states": "It drafts nothing, and Quire does not return hidden states.",
    **dict.fromkeys(
        (
            "longcat_flash_mtp", "minimax_m3_mtp", "pangu_ultra_moe_mtp", "kimi_k3_mtp", "dots3_note_mtp",
            "qwen4_exp_mtp", "inkling_mtp", "glm5_next_mtp",
        ),
        _NOT_OURS,
    ),
    "gemma4_mtp": "It is a model apart that reads the keys and values of Gemma 4. Use draft_model, ngram or suffix.",
    "custom_class": f"Quire never runs code from a repository. {_TAKE_ANOTHER}",
}  # fmt: skip

# Maximum number of draft tokens at a time if num_speculative_tokens is not set. How many are drafted in a step depends
# on how well they pay off.
_DEFAULT_TOKENS: Mapping[str, int] = {
    "ngram": 8, "suffix": 16, "draft_model": 5, "eagle": 5, "eagle3": 5, "mtp": 1,
}  # fmt: skip

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class SpeculativeConfig(msgspec.Struct, frozen=True):
    """Keys of --speculative-config. `SpeculativeOptions.chosen` fills in the method."""

    method: str | None = None  # None: derived from the model's name
    model: str | None = None  # folder or name of the draft model or head
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_SPECULATIVE_TOKENS)] | None = None  # at most
    revision: str | None = None
    quantization: str | None = None
    draft_tensor_parallel_size: _Count | None = None  # None: that of the model
    max_model_len: _Count | None = None  # longer sequences are not drafted for
    disable_by_batch_size: _Count | None = None  # no drafts for requests that arrive while more wait
    acceptance_method: str = "rejection_sampler"
    posterior_threshold: _Share = 0.09  # for typical acceptance
    posterior_alpha: Annotated[float, msgspec.Meta(gt=0)] | None = None  # None: the threshold's square root
    disable_logprobs: bool = True  # no drafts for requests for log-probabilities, which get them as usual
    prompt_lookup_min: _Count | None = None
    prompt_lookup_max: _Count | None = None
    suffix_decoding_max_tree_depth: Annotated[int, msgspec.Meta(ge=2, le=256)] = 24
    suffix_decoding_max_cached_requests: Annotated[int, msgspec.Meta(ge=0)] = 10000  # 0: a request's own tokens only
    suffix_decoding_max_cached_tokens: _Count = 2**18  # of all tenants together
    suffix_decoding_max_spec_factor: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    suffix_decoding_min_token_prob: _Share = 0.1

    def __post_init__(self) -> None:
        """Validates the keys.

        Raises:
            ValueError: the method does not exist, or its keys are inconsistent.
        """
        if self.method is not None:
            _check_method(self.method)
        if self.acceptance_method not in ACCEPTANCE_METHODS:
            raise ValueError(
                f"acceptance_method {self.acceptance_method!r} does not "
                f"exist.{nearest(self.acceptance_method, ACCEPTANCE_METHODS)} It must be one of "
                f"{', '.join(ACCEPTANCE_METHODS)}."
            )
        if self.method is None and self.model is None:
            raise ValueError(
                f"method is missing: set it to one of {', '.join(METHODS)}, or set model to the draft's folder or name."
            )
        self._check_model()
        if self.prompt_lookup_min and self.prompt_lookup_max and self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min, {self.prompt_lookup_min}, is greater than prompt_lookup_max, "
                f"{self.prompt_lookup_max}. Set it lower."
            )

    def _check_model(self) -> None:
        method = self.chosen_method
        if method in ("draft_model", "eagle", "eagle3") and not self.model:
            raise ValueError(f"{method} needs model: the draft's folder or name.")
        if method in LOOKUP_METHODS and self.model and METHOD_ALIASES.get(self.model, self.model) != method:
            raise ValueError(f"{method} does not use a model; leave out model {self.model!r}, or the method.")

    @property
    def chosen_method(self) -> str:
        """One of METHODS: the one given, else the one derived from the model's name."""
        named = self.method or _method_of(self.model or "")
        return METHOD_ALIASES.get(named, named)

    @property
    def most_tokens(self) -> int:
        """Maximum number of draft tokens for a sequence in a step."""
        return self.num_speculative_tokens or _DEFAULT_TOKENS[self.chosen_method]

    @property
    def lookup_lengths(self) -> tuple[int, int]:
        """Minimum and maximum length of n-grams to look up. If only one is given, it is both, as in vLLM."""
        least, most = self.prompt_lookup_min, self.prompt_lookup_max
        if least is None and most is None:
            return 2, 4
        return least or most or 1, most or least or 1

    @property
    def typical_acceptance(self) -> tuple[float, float] | None:
        """(threshold, alpha): the acceptance threshold on a probability, and its scale by entropy, which may change
        requests' tokens. None means that every request gets the tokens that it would without speculation."""
        if self.acceptance_method == "rejection_sampler":
            return None
        threshold = self.posterior_threshold
        return threshold, sqrt(threshold) if self.posterior_alpha is None else self.posterior_alpha


def _check_method(method: str) -> None:
    if method in REFUSED_METHODS:
        raise ValueError(f"method {method!r} is not supported. {REFUSED_METHODS[method]}")
    if method not in METHODS and method not in METHOD_ALIASES:
        hint = nearest(method, (*METHODS, *METHOD_ALIASES))
        raise ValueError(f"method {method!r} does not exist.{hint} It must be one of {', '.join(METHODS)}.")


def _method_of(model: str) -> str:
    """Derives the method from the name of a draft model, as vLLM does."""
    if model in METHODS or model in METHOD_ALIASES:
        return model
    name = PurePath(model).name.lower()
    return next((method for method in ("eagle3", "eagle") if method in name.replace("-", "")), "draft_model")


@dataclass(frozen=True)
class SpeculativeOptions:
    """Speculative decoding."""

    group: ClassVar[str] = "SpeculativeConfig"

    speculative_config: dict[str, Any] = option(
        {},
        "Speculative decoding: drafts tokens, several of which the model verifies in one step. As JSON, or key by key "
        "(--speculative-config.method ngram). Keys: method (ngram: what followed the last tokens earlier in the "
        "sequence; suffix: the same, in earlier answers too; draft_model; eagle, eagle3: a head on the model's hidden "
        "states; mtp: the model's own multi-token prediction layers), model (draft model or head), "
        "num_speculative_tokens (maximum per step; fewer or none are drafted where that pays off better) and those in "
        "docs/speculation.md.",
        schema=SpeculativeConfig,
    )
    num_lookahead_slots: int = option(
        0, "KV cache slots that a sequence reserves beyond its known tokens. Draft tokens take what they need without "
        "it.", minimum=0, maximum=MAX_SPECULATIVE_TOKENS,
    )  # fmt: skip

    def at(self, folder: str) -> SpeculativeOptions:
        """The same options for a draft model's weights in another folder; an empty name changes nothing."""
        config = {**self.speculative_config, "model": folder, "revision": None}
        return replace(self, speculative_config=config) if folder else self

    @property
    def most_query_len(self) -> int:
        """The most new tokens of a decoding sequence: one, and its draft tokens."""
        speculation = self.chosen()
        return 1 + speculation.most_tokens if speculation else 1

    def chosen(self) -> SpeculativeConfig | None:
        """How tokens are drafted; None if they are not.

        Raises:
            ValueError: see SpeculativeConfig, which the command line has checked already.
        """
        if not self.speculative_config:
            return None
        config = msgspec.convert(self.speculative_config, SpeculativeConfig)
        return msgspec.structs.replace(config, method=config.chosen_method)
