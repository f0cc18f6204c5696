"""Recordings of routers, as the simulation replays them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.router_simulation.__main__ import Run, simulate
from benchmarks.router_simulation.recorded import read_recording
from quire.v1 import common_pb2
from router.requests.recorder import RequestRecorder


def write(path: Path, requests: list[tuple[str, int, list[int]]], block_size: int = 16) -> Path:
    """(session, prompt tokens, block keys) of requests that come one second apart and take a quarter of one."""
    recorder = RequestRecorder(path)
    for number, (session, prompt_tokens, keys) in enumerate(requests):
        request = common_pb2.Generation(session_id=session, prompt_block_keys=keys, prompt_block_size=block_size)
        ago = float(len(requests) - number)
        recorder.record(request, "finished", model="m", prompt_tokens=prompt_tokens, seconds=ago, output_tokens=20)
    recorder.close()
    return path


def test_answers_are_found_in_the_next_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "r", [("a", 40, [1, 2]), ("b", 33, [1, 2]), ("a", 90, [1, 2, 3, 4, 5]), ("", 20, [])])
    first, other, alone = read_recording(path, 100)
    (_, asked), (think, again) = first.turns
    assert [request.number for _, request in first.turns] == [0, 2]
    assert (asked.prompt_tokens, asked.output_tokens, again.prompt_tokens) == (40, 20, 90)
    assert asked.keys == again.keys[:3]  # 60 tokens of prompt and answer, 48 of them in full blocks
    assert think == 0  # they overlapped
    ((_, of_other),) = other.turns
    assert of_other.keys[:2] == asked.keys[:2]
    assert of_other.keys[2] not in (*asked.keys, *again.keys)
    assert len(alone.turns[0][1].keys) == 2
    assert [each.start for each in (first, other, alone)] == pytest.approx([0, 1 / 3, 1], abs=0.01)
    assert len(read_recording(path, 2)) == 2


def test_other_sizes_of_blocks(tmp_path: Path) -> None:
    first, second = read_recording(write(tmp_path / "r", [("", 70, [1, 2]), ("", 70, [1, 3])], block_size=32), 10)
    keys = [each.turns[0][1].keys for each in (first, second)]
    assert [len(each) for each in keys] == [5, 5]
    assert keys[0][:2] == keys[1][:2]
    assert not set(keys[0][2:]) & set(keys[1][2:])
    with pytest.raises(ValueError, match="Blocks of 24 tokens are not multiples of 16"):
        read_recording(write(tmp_path / "odd", [("", 70, [1, 2])], block_size=24), 10)


def test_a_broken_line_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "r", [("", 20, [1])])
    with path.open("ab") as file:
        file.write(b'{"time": 1, "sec')
    assert len(read_recording(path, 10)) == 1
    with pytest.raises(ValueError, match="has no requests"):
        read_recording(tmp_path / "missing", 10)


def test_a_recording_is_replayed(tmp_path: Path) -> None:
    requests = [(str(number % 3), 100 + 32 * number, list(range(6 + 2 * number))) for number in range(12)]
    path = write(tmp_path / "r", requests)
    figures, _ = simulate(Run(str(path), "prefix", "recorded", 0.5, 2, 1, 100, 0))
    assert figures.errors == 0
    assert figures.hit_rate > 0.3
