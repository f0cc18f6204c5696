from __future__ import annotations

import os
from pathlib import Path

import pytest

from quire.host_memory import available_bytes, used_share


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


@pytest.mark.parametrize(
    ("membership", "limits", "share"),
    [
        ("0::/", {"memory.max": "400"}, 0.25),
        ("0::/", {"memory.max": "max"}, 0.0),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": "200"}, 0.5),
        ("0::/a/b", {"a/b/memory.max": "200", "a/memory.max": "400"}, 0.5),
        ("0::/not/visible", {}, 0.0),
        ("3:cpuset:/\n2:hugetlb,memory:/a\n0::/", {"memory/a/memory.limit_in_bytes": "400"}, 0.25),
        ("2:memory:/not/visible", {"memory/memory.limit_in_bytes": "400"}, 0.25),
    ],
)
def test_how_much_of_the_limit_this_process_uses(
    tmp_path: Path, membership: str, limits: dict[str, str], share: float
) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    (tmp_path / "cgroup").write_text(membership + "\n")
    (tmp_path / "statm").write_text("900 100 50 1 0 60 0\n")
    for name, limit in limits.items():
        place = tmp_path / "groups" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{int(limit) * page if limit.isdigit() else limit}\n")
    assert used_share(tmp_path, tmp_path / "groups") == share


def test_a_kernel_without_control_groups_sets_no_limit(tmp_path: Path) -> None:
    assert used_share(tmp_path, tmp_path) == 0.0


def test_this_process_uses_less_than_it_may() -> None:
    assert 0 <= used_share() < 1
