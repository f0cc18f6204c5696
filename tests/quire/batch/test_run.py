"""Where the files of a batch are; actual runs are tested with a stack."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from quire.batch import run
from quire.batch.lines import BatchInput, BatchResponse, BatchResult
from quire.batch.results import Results
from quire.errors import StartupError
from quire.options.batch import BatchOptions
from quire.options.gateway import GatewayOptions


def answer_all(batch: BatchOptions, requests: BatchInput, results: Results, groups: dict[str, Any]) -> None:
    for index in results.missing:
        results.add(index, BatchResult("id", f"r{index}", BatchResponse(200, "x", {})))


@pytest.mark.parametrize("folder", [None, "meanwhile"])
def test_the_output_is_where_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None
) -> None:
    monkeypatch.setattr(run, "_answer", answer_all)
    lines = ({"custom_id": f"r{number}", "url": "/v1/completions", "body": {}} for number in range(2))
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    output = tmp_path / "out.jsonl"
    temporary = str(tmp_path / folder) if folder else None
    batch = BatchOptions(str(tmp_path / "in.jsonl"), str(output), temporary)
    run.main(batch, gateway=GatewayOptions())
    assert [json.loads(line)["custom_id"] for line in output.read_bytes().splitlines()] == ["r0", "r1"]
    assert not folder or not list((tmp_path / folder).iterdir())


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays_of_an_input_that_was_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def fetch(address: str, to: Path) -> None:
        to.write_text("no JSON" if fails else '{"custom_id": "r0", "url": "/v1/completions", "body": {}}')

    monkeypatch.setattr(run, "_answer", answer_all)
    monkeypatch.setattr(run, "fetch", fetch)
    folder = tmp_path / "meanwhile"
    batch = BatchOptions("http://127.0.0.1/in.jsonl", str(tmp_path / "out.jsonl"), str(folder))
    with pytest.raises(StartupError) if fails else contextlib.nullcontext():
        run.main(batch, gateway=GatewayOptions())
    assert not list(folder.iterdir())
    assert (tmp_path / "out.jsonl").exists() != fails


@pytest.mark.parametrize("output", ["in.jsonl", "folder/../in.jsonl", "link.jsonl"])
def test_answers_do_not_replace_their_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    monkeypatch.setattr(run, "_answer", answer_all)
    (tmp_path / "folder").mkdir()
    requests = tmp_path / "in.jsonl"
    requests.write_text('{"custom_id": "r0", "url": "/v1/completions", "body": {}}')
    (tmp_path / "link.jsonl").symlink_to(requests)
    with pytest.raises(StartupError, match=r"--input-file \S*in.jsonl and --output-file \S*.jsonl are the same file"):
        run.main(BatchOptions(str(requests), str(tmp_path / output)), gateway=GatewayOptions())
    assert json.loads(requests.read_text())["url"] == "/v1/completions"
    assert not list(tmp_path.glob("*.partial"))


def test_an_address_takes_no_answers_to_its_own_requests() -> None:
    address = "http://127.0.0.1:9/in.jsonl?signed=secret"
    with pytest.raises(StartupError, match="are the same file") as caught:
        run.main(BatchOptions(address, address), gateway=GatewayOptions())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("keys", [(), ("own",)])
def test_a_file_of_keys_is_for_others_than_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    started: list[GatewayOptions] = []

    def answer(batch: BatchOptions, requests: BatchInput, results: Results, groups: dict[str, Any]) -> None:
        started.append(groups["gateway"])
        answer_all(batch, requests, results, groups)

    monkeypatch.setattr(run, "_answer", answer)
    (tmp_path / "in.jsonl").write_text('{"custom_id": "r0", "url": "/v1/completions", "body": {}}')
    (tmp_path / "keys.json").write_text('{"keys": [{"name": "a", "key": "secret"}]}')
    batch = BatchOptions(str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))
    run.main(batch, gateway=GatewayOptions(api_key=keys, api_key_file=str(tmp_path / "keys.json")))
    started[0].check()
    assert started[0].api_key == keys or (len(started[0].api_key) == 1 and len(started[0].api_key[0]) == 64)


def test_an_output_that_cannot_be_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="must be a file in an existing folder"):
        run.main(BatchOptions("in.jsonl", str(tmp_path / "missing" / "out.jsonl")))
