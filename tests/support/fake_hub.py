"""A local server that implements downloads from the Hugging Face hub."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GOOD_TOKEN = "hf_good"


@dataclass
class Repository:
    """One model: its files by revision."""

    revisions: Mapping[str, Mapping[str, bytes]]
    access: str = "public"  # or gated, private

    def files(self, revision: str) -> Mapping[str, bytes] | None:
        """The files of a branch, or of the commit that it points to."""
        by_commit = {commit_of(name): files for name, files in self.revisions.items()}
        return {**self.revisions, **by_commit}.get(revision)


@dataclass
class FakeHub:
    """The hub: the requests that it got, and ways to make it misbehave."""

    url: str
    repositories: Mapping[str, Repository]
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range
    breaks_after: dict[str, int] = field(default_factory=dict)  # file → bytes sent before its first answer breaks off


def commit_of(revision: str) -> str:
    return hashlib.sha1(revision.encode()).hexdigest()


@contextlib.contextmanager
def running_hub(repositories: Mapping[str, Repository]) -> Iterator[FakeHub]:
    """Serves until left."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    hub = FakeHub(f"http://127.0.0.1:{server.server_port}", repositories)
    server.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub: FakeHub = self.server.hub  # type: ignore[attr-defined]
        path = self.path.partition("?")[0]
        hub.requests.append((self.command, path, self.headers.get("Range", "")))
        is_api = path.startswith("/api/models/")
        words = path.removeprefix("/api/models/").strip("/").split("/")
        name, (kind, revision, *file) = "/".join(words[:2]), words[2:] or ("revision", "main")
        repository = hub.repositories.get(name)
        if repository is None:
            return self._refuse(404, "RepoNotFound")
        if self._is_refused(repository):
            return None
        files = repository.files(revision)
        if files is None:
            return self._refuse(404, "RevisionNotFound")
        commit = revision if len(revision) == 40 else commit_of(revision)
        if is_api:
            return self._send_json(name, kind, commit, files)
        return self._send_file(hub, commit, "/".join(file), files)

    def _is_refused(self, repository: Repository) -> bool:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in (GOOD_TOKEN, "hf_other"):
            self._refuse(401, "")
            return True
        if repository.access == "gated" and token != GOOD_TOKEN:
            self._refuse(403 if token else 401, "GatedRepo")
            return True
        if repository.access == "private" and token != GOOD_TOKEN:
            self._refuse(404 if token else 401, "RepoNotFound")
            return True
        return False

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_json(self, name: str, kind: str, commit: str, files: Mapping[str, bytes]) -> None:
        if kind == "tree":
            content: object = [
                {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for path, data in files.items()
            ]
        else:
            content = {"id": name, "modelId": name, "sha": commit, "siblings": [{"rfilename": path} for path in files]}
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, hub: FakeHub, commit: str, path: str, files: Mapping[str, bytes]) -> None:
        if path not in files:
            return self._refuse(404, "EntryNotFound")
        data = files[path]
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[start : start + hub.breaks_after[path]] if path in hub.breaks_after else data[start:])
            if hub.breaks_after.pop(path, None) is not None:
                self.close_connection = True
        return None
