"""Messages about unusable HTTPS certificate files, given before anything is started."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from quire.certificates import expiry
from quire.cli import cli
from quire.errors import StartupError
from quire.options.gateway import GatewayOptions
from tests.support.certificates import make_authority, make_certificate, openssl

FILES = {"--ssl-certfile": "one.pem", "--ssl-keyfile": "one.key", "--ssl-ca-certs": "ca.pem"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    make_authority(made)
    for name in ("one", "two"):
        make_certificate(made, name)
    openssl(made, "pkey", "-in", "one.key", "-aes256", "-passout", "pass:hush", "-out", "locked.key")
    (made / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    return made


@pytest.mark.parametrize("days", [2, 20_000])  # whose years are written with two digits, and with four
def test_the_first_that_expires_is_told(folder: Path, days: int) -> None:
    openssl(folder, "x509", "-req", "-in", "one.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", str(days),
            "-out", "dated.pem")  # fmt: skip
    told = subprocess.run(["openssl", "x509", "-in", "dated.pem", "-noout", "-enddate"], cwd=folder, check=True,
                          capture_output=True, text=True, timeout=30).stdout  # fmt: skip
    end = ssl.cert_time_to_seconds(told.strip().removeprefix("notAfter="))
    dated = (folder / "dated.pem").read_bytes()
    openssl(folder, "x509", "-req", "-in", "two.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", str(days + 9),
            "-out", "later.pem")  # fmt: skip
    assert expiry(dated) == expiry((folder / "later.pem").read_bytes() + dated) == end
    assert expiry(b"") is None


def check(folder: Path, changed: dict[str, str]) -> None:
    values = {flag[2:].replace("-", "_"): str(folder / name) for flag, name in {**FILES, **changed}.items()}
    GatewayOptions(**values).check()  # type: ignore[arg-type]


def test_those_that_go_together_are_taken(folder: Path) -> None:
    check(folder, {})
    check(folder, {"--ssl-certfile": "two.pem", "--ssl-keyfile": "two.key"})


@pytest.mark.parametrize("flag", FILES)
@pytest.mark.parametrize(("name", "words"), [("nowhere", "No such file"), ("", "directory"), ("broken.pem", "in PEM")])
def test_a_file_that_cannot_be_used_is_named(folder: Path, flag: str, name: str, words: str) -> None:
    with pytest.raises(StartupError) as caught:
        check(folder, {flag: name})
    assert f"{flag} {folder / name}" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("key", ["two.key", "locked.key"])
def test_a_key_of_another_or_with_a_passphrase_is_named(folder: Path, key: str) -> None:
    with pytest.raises(StartupError, match=f"--ssl-keyfile .*{key} must be a certificate and its key in PEM"):
        check(folder, {"--ssl-keyfile": key})


def test_a_command_says_so_in_one_line() -> None:
    result = CliRunner().invoke(cli, ["serve", "--ssl-keyfile", "/nope", "--ssl-certfile", "/nope"])
    assert result.exit_code == 1
    assert result.stderr == "error: --ssl-certfile /nope cannot be read: No such file or directory.\n"
