"""A small hub that speaks the protocol of huggingface.co over real HTTP, with faults that a test orders.

model_info and dataset_info with file metadata, resolve with a redirect for LFS files, ranges, entity tags, error codes in headers, and faults:
statuses, cut connections, wrong lengths, flipped bytes, ignored ranges, slow bodies. Every request is kept in `log`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import socket
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LFS_FROM = 4096
"""Files of at least this many bytes, and all safetensors and parquet files, are LFS files."""


@functools.lru_cache(maxsize=256)
def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@functools.lru_cache(maxsize=256)
def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_lfs(path: str, data: bytes) -> bool:
    return len(data) >= LFS_FROM or path.endswith((".safetensors", ".parquet", ".bin"))


def blob_of(path: str, data: bytes) -> str:
    return sha256(data) if is_lfs(path, data) else git_sha1(data)


@dataclass
class Repo:
    """One repository: commits with their files, and what each branch or tag means."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False
    forbidden: bool = False

    def commit(self, files: dict[str, bytes], ref: str = "main") -> str:
        sha = hashlib.sha1(repr(sorted((p, git_sha1(d)) for p, d in files.items())).encode()).hexdigest()
        self.commits[sha] = files
        self.refs[ref] = sha
        return sha

    def find(self, revision: str) -> str:
        return self.refs.get(revision, revision if revision in self.commits else "")


@dataclass
class Fault:
    """What goes wrong for requests whose path matches, `times` times: a status, a cut after bytes, a stated length, a flipped byte, a pause."""

    pattern: str
    times: int = 1
    status: int = 0
    cut_after: int = -1
    length: int = -1
    flip_at: int = -1
    no_range: bool = False
    pause_s: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """One request as it came: method, path, range header ("" without), status sent, bytes of body sent."""

    method: str
    path: str
    range: str
    status: int
    sent: int


class FakeHub:
    """The hub, in threads of this process. `endpoint` is what HF_ENDPOINT must be."""

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.faults: list[Fault] = []
        self.log: list[Seen] = []
        self.edit: dict[str, Any] = {}
        self.lock = threading.Lock()
        hub = self

        class Handler(_Handler):
            the = hub

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def repo(self, name: str, kind: str = "model") -> Repo:
        return self.repos.setdefault((kind, name), Repo())

    def fail(self, pattern: str, **how: Any) -> None:
        self.faults.append(Fault(pattern, **how))

    def take(self, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.pattern, path):
                    fault.times -= 1
                    return fault
        return None

    def sent(self, pattern: str = "/cdn/|/resolve/") -> int:
        """Bytes of bodies sent for matching paths."""
        return sum(s.sent for s in self.log if s.status in (200, 206) and re.search(pattern, s.path))

    def asked(self, pattern: str) -> int:
        return sum(1 for s in self.log if re.search(pattern, s.path))

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is what a test wanted, and no error of the hub."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    the: FakeHub

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.fault = self.the.take(path)
        if self.fault and self.fault.pause_s:
            time.sleep(self.fault.pause_s)
        if self.fault and self.fault.status:
            return self.say(self.fault.status, b"sorry", self.fault.headers)
        if match := re.fullmatch(r"/api/(model|dataset)s/(.+?)/revision/(.+)", path):
            return self.info(match[1], match[2], match[3])
        if match := re.fullmatch(r"/(datasets/)?([^/]+(?:/[^/]+)?)/resolve/([^/]+)/(.+)", path):
            return self.resolve("dataset" if match[1] else "model", *match.groups()[1:])
        if match := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
            return self.blob(match[1])
        return self.say(404, b"", {"X-Error-Code": "EntryNotFound"})

    def door(self, kind: str, name: str, revision: str) -> tuple[Repo, str] | None:
        repo = self.the.repos.get((kind, name))
        token = self.headers.get("Authorization", "")
        if repo is None or (repo.private and not token):
            self.say(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."})
        elif repo.gated:
            self.say(403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."})
        elif repo.forbidden:
            self.say(403, b"", {"X-Error-Message": "Forbidden"})
        elif not (sha := repo.find(revision)):
            self.say(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            return repo, sha
        return None

    def info(self, kind: str, name: str, revision: str) -> None:
        if (found := self.door(kind, name, revision)) is None:
            return
        repo, sha = found
        siblings = []
        for path, data in repo.commits[sha].items():
            row: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": git_sha1(data)}
            if is_lfs(path, data):
                row["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 130}
            siblings.append(row)
        body = {
            "id": name,
            "modelId": name,
            "sha": sha,
            "siblings": siblings,
            "tags": [],
            "private": False,
            "downloads": 0,
            "likes": 0,
        }
        self.say(200, json.dumps(body | self.the.edit).encode(), {"Content-Type": "application/json"})

    def resolve(self, kind: str, name: str, revision: str, path: str) -> None:
        if (found := self.door(kind, name, revision)) is None:
            return None
        repo, sha = found
        data = repo.commits[sha].get(path)
        if data is None:
            return self.say(404, b"", {"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": sha, "ETag": f'"{blob_of(path, data)}"'}
        if is_lfs(path, data):
            digest = sha256(data)
            linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data)), "Location": f"/cdn/{digest}"}
            return self.say(302, b"", headers | linked)
        return self.bytes(data, headers)

    def blob(self, digest: str) -> None:
        for repo in self.the.repos.values():
            for files in repo.commits.values():
                for data in files.values():
                    if sha256(data) == digest:
                        return self.bytes(data, {"ETag": f'"{digest}"'})
        return self.say(404, b"")

    def bytes(self, data: bytes, headers: dict[str, str]) -> None:
        fault, status = self.fault, 200
        if fault and fault.flip_at >= 0:
            data = data[: fault.flip_at] + bytes([data[fault.flip_at] ^ 1]) + data[fault.flip_at + 1 :]
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted and not (fault and fault.no_range):
            start = int(wanted[1])
            headers = headers | {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
            data, status = data[start:], 206
        self.say(status, data, headers)

    def say(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        fault = self.fault
        length = fault.length if fault and fault.length >= 0 else len(body)
        cut = fault.cut_after if fault and fault.cut_after >= 0 else len(body)
        planned = body[:cut] if self.command != "HEAD" else b""
        path, wanted = unquote(urlsplit(self.path).path), self.headers.get("Range", "")
        seen = Seen(self.command, path, wanted, status, len(planned))
        with self.the.lock:  # before the answer: who has it may look into the log at once
            self.the.log.append(seen)
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        sent = self.push(planned)
        if sent < len(planned):
            with self.the.lock:
                self.the.log[self.the.log.index(seen)] = replace(seen, sent=sent)
        if sent < len(body) and self.command != "HEAD":
            self.close_connection = True
            with contextlib.suppress(OSError):  # the other side was faster
                self.connection.shutdown(socket.SHUT_RDWR)

    def push(self, body: bytes) -> int:
        try:
            self.wfile.write(body)
            self.wfile.flush()
        except OSError:
            return 0
        return len(body)
