"""Downloads models from the Hugging Face hub, ModelScope, and S3."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quire.cache_folder import cache_folder
from quire.errors import StartupError
from quire.extras import needed

# Value of --hf-token that stands for the login stored by `hf auth login`.
STORED_LOGIN = "login"
S3 = "s3://"
# vLLM's variable names → those that AWS's tools read.
_S3_VARIABLES = {
    "S3_ACCESS_KEY_ID": "AWS_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY": "AWS_SECRET_ACCESS_KEY",
    "S3_ENDPOINT_URL": "AWS_ENDPOINT_URL",
}  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """The files wanted of a model."""

    name: str
    revision: str | None = None
    patterns: Sequence[str] = ()  # files to include, such as "*.safetensors"
    ignored: Sequence[str] = ()  # of the included files, those to leave out


@dataclass(frozen=True)
class Hub:
    """Where models are downloaded from and stored.

    Attributes:
        folder: where models are stored; None means the Hugging Face cache, or ModelScope's.
        token: token of the Hugging Face hub; None means HF_TOKEN or the stored login, if there is one.
        use_modelscope: whether to use ModelScope instead of the Hugging Face hub.
    """

    folder: str | None = None
    token: str | None = field(default=None, repr=False)
    use_modelscope: bool = False

    def fetch(self, wanted: Wanted) -> Path:
        """Downloads the files; returns the model's folder. Files that are there already are not downloaded again.

        Raises:
            StartupError: the model cannot be downloaded; the message says why and what to do.
        """
        if wanted.name.startswith(S3):
            return self._from_s3(wanted)
        return self._from_modelscope(wanted) if self.use_modelscope else self._from_huggingface(wanted)

    def _from_huggingface(self, wanted: Wanted) -> Path:
        # Slow to import, and not needed for folders.
        from huggingface_hub import snapshot_download

        from quire.download_bar import DownloadBar

        try:
            folder = snapshot_download(
                wanted.name, revision=wanted.revision, cache_dir=self.folder, allow_patterns=[*wanted.patterns],
                ignore_patterns=[*wanted.ignored], tqdm_class=DownloadBar,
                token=True if self.token == STORED_LOGIN else self.token,
            )  # fmt: skip
        except Exception as error:
            raise StartupError(_explained(wanted, error)) from error
        return Path(folder)

    def _from_modelscope(self, wanted: Wanted) -> Path:
        with needed("--use-modelscope", "modelscope", "modelscope"):
            from modelscope.hub.snapshot_download import snapshot_download
        try:
            folder = snapshot_download(
                wanted.name, revision=wanted.revision, cache_dir=self.folder, allow_patterns=[*wanted.patterns],
                ignore_patterns=[*wanted.ignored] or None,
            )  # fmt: skip
        except Exception as error:
            raise StartupError(f"No model {wanted.name}: it cannot be downloaded from ModelScope ({error}).") from error
        return Path(folder)

    def _from_s3(self, wanted: Wanted) -> Path:
        """Downloads with the package runai_model_streamer, which reads the variables S3_* or AWS_*."""
        with needed(f"--model {wanted.name}", "runai-model-streamer-s3", "runai"):
            from runai_model_streamer import pull_files
        folder = Path(self.folder or cache_folder()) / f"s3-{hashlib.sha256(wanted.name.encode()).hexdigest()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        for ours, theirs in _S3_VARIABLES.items():
            if value := os.environ.get(ours):
                os.environ.setdefault(theirs, value)
        try:
            ignored = [*wanted.ignored, *(f"*/{pattern}" for pattern in wanted.ignored)]  # match keys, or file names
            pull_files(wanted.name, str(folder), [*wanted.patterns], ignored)
        except Exception as error:
            raise StartupError(
                f"No model {wanted.name}: it cannot be downloaded from the storage ({error})."
            ) from error
        return folder


def _explained(wanted: Wanted, error: Exception) -> str:
    """Explains what went wrong with the Hugging Face hub, and what to do about it."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        LocalTokenNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    page, given = f"{constants.ENDPOINT}/{wanted.name}", "--hf-token, the variable HF_TOKEN, or `hf auth login`"
    offline = isinstance(error, LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE
    match error:
        case LocalTokenNotFoundError():
            why = "no login is stored. Log in with `hf auth login`, or set --hf-token TOKEN"
        case GatedRepoError():
            why = f"it is gated. Accept its license at {page}, and provide the token of that account: {given}"
        case RevisionNotFoundError():
            why = f"it has no revision {wanted.revision}. See the branches and tags at {page}"
        case RepositoryNotFoundError():
            why = (
                "the hub has no model of that name, or you have no access to it. Check the name; for a private "
                f"model, provide a token that may read it: {given}"
            )
        case _ if offline:
            why = (
                "it is not (completely) in the cache, and HF_HUB_OFFLINE prevents downloading. Download it once "
                "without HF_HUB_OFFLINE, or name a folder"
            )
        case HfHubHTTPError() if getattr(error.response, "status_code", 0) == 401:
            why = f"the token is not valid. Provide another: {given}"
        case LocalEntryNotFoundError():
            why = f"{constants.ENDPOINT} cannot be reached, and it is not (completely) in the cache"
        case _:
            why = "there is no such folder, and it cannot be downloaded from the hub"
    return f"No model {wanted.name}: {why}. ({str(error).strip().splitlines()[0][:300]})"
