"""Options for the model and its tokenizer, shared by the engine and the tokenizer service."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.hub import STORED_LOGIN, Hub
from quire.model_folder import DEMO_MODEL
from quire.options.base import ANY_WORD, option

TOKENIZER_MODES = ("auto", "hf", "slow", "mistral", "deepseek_v32", "deepseek_v4", "custom")


@dataclass(frozen=True)
class ModelOptions:
    """Model location and names."""

    model: str = option(
        DEMO_MODEL,
        "Folder of the model, or a .gguf file; or its name on the Hugging Face hub (OWNER/NAME, or "
        "OWNER/NAME:FILE.gguf); or s3://BUCKET/PATH. Default: the small model that comes with Quire.",
        positional=True,
        metavar="PATH|NAME",
    )
    revision: str | None = option(None, "Branch, tag or commit of a hub model.")
    download_dir: str | None = option(None, "Folder for downloaded models; the Hugging Face cache if not set.")
    hf_token: str | None = option(
        None, "Token for private and gated models on the Hugging Face hub; without a value, the stored login of `hf "
        "auth login`. Default: HF_TOKEN, or that login.", secret=True, bare=STORED_LOGIN,
    )  # fmt: skip
    use_modelscope: bool = option(
        False, "Downloads models from ModelScope instead of the Hugging Face hub.", variables=("VLLM_USE_MODELSCOPE",)
    )
    tokenizer: str | None = option(
        None, "Folder of the tokenizer, or its name on the Hugging Face hub. Default: the model's.", metavar="PATH|NAME"
    )
    tokenizer_revision: str | None = option(
        None, "Branch, tag or commit of a hub tokenizer. Default: --revision if the tokenizer is the model's."
    )
    tokenizer_mode: str = option(
        "auto", "How the tokenizer is read: auto (tokenizer.json, or the older files that it replaced; like mistral if "
        "there is only tekken.json), mistral (tekken.json; conversations are formatted by the package mistral-common), "
        "hf (as auto, but never tekken.json), slow (the same: slow tokenizers no longer exist), deepseek_v32 or "
        "deepseek_v4 (the same; conversations are written as DeepSeek V3.2's or V4's, as auto does if there is no "
        "template) or custom (the one that an installed package registers under the name given by --tokenizer).",
        choices=TOKENIZER_MODES,
    )  # fmt: skip
    served_model_name: tuple[str, ...] = option(
        (), "Names under which the API serves the model; answers contain the first. Takes several words. Default: the "
        "model's own name.", following=ANY_WORD,
    )  # fmt: skip

    def at(self, folder: str) -> ModelOptions:
        """The same options for the model's weights in another folder; an empty name changes nothing."""
        return replace(self, model=folder, revision=None) if folder else self

    @property
    def hub(self) -> Hub:
        """The hub from which the model is downloaded."""
        return Hub(self.download_dir, self.hf_token, self.use_modelscope)

    @property
    def served_names(self) -> tuple[str, ...]:
        """The names that clients may use; never empty."""
        return self.served_model_name or (self.model,)

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's folder, or its name on the hub."""
        return self.tokenizer or self.model
