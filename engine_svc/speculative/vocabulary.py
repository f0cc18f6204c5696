"""Checks that a draft model has the same vocabulary as the model that verifies its tokens."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from engine_svc.config_formats.registry import find_model_config
from quire.errors import StartupError
from quire.hub import Wanted
from quire.model_folder import model_folder
from quire.options.model import ModelOptions
from quire.options.model_form import ModelFormOptions
from quire.options.speculative import SpeculativeConfig
from quire.tokenizer.modes import find_tokenizer

logger = logging.getLogger(__name__)

_FIX = "Use a draft of the model's own family, or ngram or suffix, which need none."


def check_vocabulary(config: SpeculativeConfig, model: ModelOptions, vocab_size: int) -> None:
    """Checks that token ids mean the same in the draft model and the model.

    Args:
        vocab_size: vocabulary size in the model's configuration.

    Raises:
        StartupError: the draft model does not exist; a token differs; or the vocabularies cannot be compared and have
            different sizes.
    """
    draft = replace(model, model=config.model or "", revision=config.revision, tokenizer=None, tokenizer_revision=None)
    try:
        ours, theirs = _tokens(model), _tokens(draft)
    except StartupError as error:
        _check_size(config, draft, vocab_size, error)
        return
    for token_id in sorted(ours.keys() & theirs.keys()):
        if ours[token_id] != theirs[token_id]:
            raise StartupError(
                f"--speculative-config: the draft {config.model} has a different vocabulary: its token {token_id} is "
                f"{theirs[token_id]!r}, but the model's is {ours[token_id]!r}. {_FIX}"
            )


def _tokens(model: ModelOptions) -> Mapping[int, str]:
    """Tokens by id, without added tokens, which have many different names and are rarely drafted."""
    vocabulary = find_tokenizer(model).read().tokenizer.get_vocab(with_added_tokens=False)
    return {token_id: token for token, token_id in vocabulary.items()}


def _check_size(config: SpeculativeConfig, draft: ModelOptions, vocab_size: int, reason: StartupError) -> None:
    try:
        folder = model_folder(Wanted(draft.model, draft.revision, ("*.json",)), draft.hub)
        found = find_model_config(folder, ModelFormOptions())
    except StartupError as error:
        raise StartupError(f"--speculative-config: the draft {config.model}: {error}") from error
    size = (found.get("text_config") or found).get("vocab_size")
    if size != vocab_size:
        raise StartupError(
            f"--speculative-config: the draft {config.model} has a vocabulary of {size} tokens, but the model has "
            f"one of {vocab_size}; whether they agree cannot be checked ({reason}). {_FIX}"
        )
    logger.info("cannot check whether the draft's tokens are the model's; assuming that they are: %s", reason)
