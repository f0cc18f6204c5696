"""Certificates for tests, by the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=30)


def make_authority(folder: Path) -> None:
    openssl(folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority")  # fmt: skip


def make_certificate(folder: Path, name: str) -> None:
    """name.pem and name.key, for 127.0.0.1, from the folder's authority."""
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl(folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
            f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")  # fmt: skip
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", "san", "-out", f"{name}.pem")  # fmt: skip
