from __future__ import annotations

from pathlib import Path

from quire.host_memory import available_bytes


def test_what_the_control_group_leaves(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 4 kB\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == 4096
    (tmp_path / "memory.max").write_text("3000\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == 4096
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == 2000
    (tmp_path / "memory.current").write_text("3500\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == 0
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == 4096


def test_this_machine_has_some() -> None:
    assert available_bytes() > 0
