"""Downloads, from a hub on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from engine_svc.loader.folder import weights_folder
from engine_svc.loader.formats.registry import create_format
from quire.errors import StartupError
from quire.hub import Hub, Wanted
from quire.options.load import LoadOptions
from quire.options.model import ModelOptions
from tests.support.fake_bucket import running_bucket
from tests.support.fake_hub import GOOD_TOKEN, FakeHub, Repository, running_hub

LARGE = os.urandom(3_000_000)
FILES = {
    "config.json": b"{}", "model.safetensors": LARGE, "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"twice", "original/model.safetensors": b"again", "README.md": b"#",
}  # fmt: skip
REPOSITORIES = {
    "org/open": Repository({"main": FILES, "v2": FILES | {"config.json": b'{"v": 2}'}}),
    "org/gated": Repository({"main": FILES}, "gated"),
    "org/private": Repository({"main": FILES}, "private"),
    "org/mistral": Repository({"main": {"params.json": b"{}", "consolidated.safetensors": b"weights"}}),
    "org/gguf": Repository({"main": {
        "m-Q8_0.gguf": LARGE, "m-Q4_K_M-00001-of-00002.gguf": b"one", "m-Q4_K_M-00002-of-00002.gguf": b"two",
    }}),
}  # fmt: skip
ALL = ("*.safetensors", "*.json")


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with running_hub(REPOSITORIES) as running:
        point_at(running.url, monkeypatch)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-login"))
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield running


def fetch(name: str, cache: Path, revision: str | None = None, token: str | None = None) -> Path:
    return Hub(str(cache), token).fetch(Wanted(name, revision, ALL, ("original/*", "consolidated*")))


def names(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_what_is_needed_comes_once(hub: FakeHub, tmp_path: Path) -> None:
    folder = fetch("org/open", tmp_path)
    assert names(folder) == {"config.json", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == LARGE
    hub.requests.clear()
    assert fetch("org/open", tmp_path) == folder
    assert not [path for method, path, _ in hub.requests if method == "GET" and path.endswith(".safetensors")]


def test_a_revision(hub: FakeHub, tmp_path: Path) -> None:
    assert (fetch("org/open", tmp_path, "v2") / "config.json").read_bytes() == b'{"v": 2}'
    assert (fetch("org/open", tmp_path) / "config.json").read_bytes() == b"{}"
    with pytest.raises(StartupError, match=r"No model org/open: it has no revision v9\. See the branches"):
        fetch("org/open", tmp_path, "v9")


def test_a_broken_download_goes_on_where_it_was(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 250_000)  # bytes per write
    hub.breaks_after["model.safetensors"] = 1_000_000
    folder = fetch("org/open", tmp_path)
    assert (folder / "model.safetensors").read_bytes() == LARGE
    ranges = [asked for method, path, asked in hub.requests if method == "GET" and path.endswith("model.safetensors")]
    assert ranges[0] == ""
    assert ranges[-1] == "bytes=1000000-"


@pytest.mark.parametrize("token", [None, "hf_other"])  # 401, 403
def test_a_gated_model(hub: FakeHub, tmp_path: Path, token: str | None) -> None:
    with pytest.raises(StartupError, match=rf"it is gated\. Accept its license at {hub.url}/org/gated.*--hf-token"):
        fetch("org/gated", tmp_path, token=token)
    assert names(fetch("org/gated", tmp_path, token=GOOD_TOKEN)) == {"config.json", "model.safetensors"}


@pytest.mark.parametrize("name", ["org/private", "org/nothing"])
def test_a_model_that_the_hub_does_not_show(hub: FakeHub, tmp_path: Path, name: str) -> None:
    with pytest.raises(StartupError, match=rf"No model {name}: the hub has no model of that name.*--hf-token"):
        fetch(name, tmp_path)


def test_tokens(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StartupError, match="the token is not valid"):
        fetch("org/open", tmp_path, token="hf_wrong")
    with pytest.raises(StartupError, match=r"no login is stored\. Log in with `hf auth login`"):
        fetch("org/private", tmp_path, token="login")
    (tmp_path / "login").write_text(GOOD_TOKEN)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "login"))
    assert fetch("org/private", tmp_path, token="login")
    (tmp_path / "login").unlink()
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    assert fetch("org/private", tmp_path / "other")


def test_offline(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch("org/open", tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert fetch("org/open", tmp_path) == folder
    with pytest.raises(StartupError, match=r"HF_HUB_OFFLINE prevents downloading\. Download it once without"):
        fetch("org/open", tmp_path / "empty")
    assert not hub.requests


def test_a_hub_that_cannot_be_reached(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(
        StartupError, match=r"http://127.0.0.1:9 cannot be reached, and it is not .completely. in the cache"
    ):
        fetch("org/open", tmp_path)


def test_weights_come_once_in_whichever_layout(hub: FakeHub, tmp_path: Path) -> None:
    def load(name: str, **options: str) -> set[str]:
        model = ModelOptions(name, download_dir=str(tmp_path / str(options)))
        return names(weights_folder(model, LoadOptions(**options)))

    assert load("org/open") == {"config.json", "model.safetensors"}
    assert load("org/open", load_format="pt") == {"config.json", "pytorch_model.bin"}
    assert load("org/open", load_format="dummy") == {"config.json"}
    assert load("org/open", load_format="mistral") == {"config.json", "consolidated.safetensors"}
    assert load("org/mistral") == {"params.json", "consolidated.safetensors"}


@pytest.mark.slow
def test_by_the_variables_that_users_set(hub: FakeHub, tmp_path: Path) -> None:
    code = "from quire.hub import Hub, Wanted\nprint(Hub().fetch(Wanted('org/private', patterns=('*.json',))))\n"
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd()), "HF_ENDPOINT": hub.url, "HF_TOKEN": GOOD_TOKEN,
        "HF_HOME": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert names(Path(done.stdout.strip())) == {"config.json"}


def test_modelscope_is_asked_by_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a stand-in: the package is not a test dependency, and no such hub runs on this machine."""
    asked: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def snapshot_download(*arguments: object, **options: object) -> str:
        asked.append((arguments, options))
        if arguments == ("org/nothing",):
            raise ValueError("no such model")
        return str(tmp_path)

    module = types.ModuleType("modelscope.hub.snapshot_download")
    module.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    for name in ("modelscope", "modelscope.hub"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "modelscope.hub.snapshot_download", module)
    model = ModelOptions("org/open", revision="v2", download_dir="/models", use_modelscope=True)
    assert weights_folder(model, LoadOptions(load_format="safetensors", ignore_patterns=("a",))) == tmp_path
    expected = {"revision": "v2", "cache_dir": "/models", "allow_patterns": [*ALL], "ignore_patterns": ["a", "a"]}
    assert asked == [(("org/open",), expected)]
    with pytest.raises(
        StartupError, match=r"No model org/nothing: it cannot be downloaded from ModelScope \(no such model\)"
    ):
        Hub(use_modelscope=True).fetch(Wanted("org/nothing"))


def test_modelscope_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(StartupError, match=r"--use-modelscope needs the package modelscope.*quire\[modelscope\]"):
        Hub(use_modelscope=True).fetch(Wanted("org/open"))
    monkeypatch.setitem(sys.modules, "runai_model_streamer", None)
    with pytest.raises(StartupError, match=r"--model s3://b/m needs the package runai-model-stre.*quire\[runai\]"):
        Hub().fetch(Wanted("s3://b/m"))


def test_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"m/config.json": b"{}", "m/model.safetensors": LARGE, "m/original/model.safetensors": b"", "m/a.md": b"#"}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    with running_bucket(files) as (url, asked):
        settings = {"S3_ENDPOINT_URL": url, "S3_ACCESS_KEY_ID": "my-key", "S3_SECRET_ACCESS_KEY": "secret"}
        for name, value in (settings | {"AWS_DEFAULT_REGION": "us-east-1"}).items():
            monkeypatch.setenv(name, value)
        folder = Hub(str(tmp_path)).fetch(Wanted("s3://bucket/m", None, ALL, ("original/*",)))
        assert names(folder) == {"config.json", "model.safetensors"}
        assert (folder / "model.safetensors").read_bytes() == LARGE
        assert all("Credential=my-key/" in each for each in asked)
    with pytest.raises(StartupError, match="No model s3://bucket/m: it cannot be downloaded from the storage"):
        Hub(str(tmp_path)).fetch(Wanted("s3://bucket/m", None, ALL))


@pytest.mark.parametrize("name", ["Q4_K_M", "m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf"])
def test_one_model_of_a_repository_in_gguf(hub: FakeHub, tmp_path: Path, name: str) -> None:
    """Downloads all of its parts, and no file of another quantization."""
    model = ModelOptions(model=f"org/gguf:{name}", download_dir=str(tmp_path))
    file = weights_folder(model, LoadOptions())
    assert file.name == "m-Q4_K_M-00001-of-00002.gguf"
    assert names(file.parent) == {file.name, "m-Q4_K_M-00002-of-00002.gguf"}
    with pytest.raises(StartupError, match=r"org/gguf:Q2_K: the repository has no file \*Q2_K\*\.gguf"):
        weights_folder(ModelOptions(model="org/gguf:Q2_K", download_dir=str(tmp_path)), LoadOptions())


def test_a_repository_in_gguf_without_a_file(hub: FakeHub, tmp_path: Path) -> None:
    """If it is unclear which file is meant, no GGUF file is downloaded."""
    model = ModelOptions(model="org/gguf", download_dir=str(tmp_path))
    folder = weights_folder(model, options := LoadOptions(load_format="gguf"))
    with pytest.raises(StartupError, match=r"name the file: OWNER/NAME:FILE\.gguf"):
        create_format(folder, options)
