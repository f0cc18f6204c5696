"""Credentials are not shown; what only looks like one is."""

from __future__ import annotations

import pytest

from quire.environment.secrets import HIDDEN, without_secrets


@pytest.mark.parametrize(
    "name",
    ["QUIRE_API_KEY", "VLLM_API_KEY", "HF_TOKEN", "OPENAI_APIKEY", "HF_HUB_TOKEN", "QUIRE_DB_PASSWORD", "NCCL_SECRET"],
)
def test_names_that_tell(name: str) -> None:
    assert without_secrets(name, "sesame") == HIDDEN
    assert without_secrets(name, "") == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("QUIRE_MAX_TOKENS", "512"),
        ("QUIRE_MAX_NUM_BATCHED_TOKENS", "2048"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("HF_TOKEN_PATH", "/home/me/token"),
        ("QUIRE_SSL_KEYFILE", "/etc/key.pem"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("OMP_NUM_THREADS", "8"),
        ("QUIRE_KEYBOARD", "qwertz"),
    ],
)
def test_names_that_only_sound_like_it(name: str, value: str) -> None:
    assert without_secrets(name, value) == value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("https://me:pass@proxy:3128/x", f"https://{HIDDEN}@proxy:3128/x"),
        ("s3://b/x?X-Amz-Signature=abc&v=1", f"s3://b/x?X-Amz-Signature={HIDDEN}&v=1"),
        ("authorization=Bearer abc.def", f"authorization=Bearer {HIDDEN}"),
        ("--token hf_abcdefghijkl --port 1", f"--token {HIDDEN} --port 1"),
        ("sk-proj-abcdefghijk", HIDDEN),
        ('{"api_key": "abc", "n": 1}', f'{{"api_key": "{HIDDEN}", "n": 1}}'),
        ("sk-1", "sk-1"),
        ("http://host:80/a@b", "http://host:80/a@b"),
    ],
)
def test_values_that_tell(value: str, shown: str) -> None:
    assert without_secrets("QUIRE_HEADER", value) == shown


def test_options_that_are_secret_by_declaration() -> None:
    assert without_secrets("QUIRE_STORE", "redis://h", {"QUIRE_STORE"}) == HIDDEN
