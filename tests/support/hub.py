"""A server on the loopback that speaks the API of the Hugging Face Hub, over files in memory."""

import base64
import hashlib
import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

READER, WRITER = "hf_reader", "hf_writer"
"""Tokens: both may read private and gated repositories, the second may write."""
LFS_BYTES = 4096
"""Files of this size or more are stored as the Hub stores weights."""


@dataclass
class HubRepository:
    """The files of a repository by branch or commit, and who may read it."""

    files: dict[str, bytes]
    private: bool = False
    gated: bool = False
    card: dict[str, str] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.commit("main", self.files)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        """Make `files` the content of a branch; return the commit."""
        listed = repr([branch, *sorted((name, sha256(content)) for name, content in files.items())])
        commit = hashlib.sha1(listed.encode()).hexdigest()
        self.branches[branch], self.commits[commit] = commit, files
        return commit

    def resolve(self, revision: str) -> str | None:
        commit = self.branches.get(revision, revision)
        return commit if commit in self.commits else None


@dataclass
class Faults:
    """What goes wrong: `cut` closes the connection in the middle of the first answer of each file,
    `throttle` answers 429 to that many requests for files, `corrupt` changes the bytes of a file,
    `status` is the answer to every request, `page` its text, `whole` answers ranges with files."""

    cut: bool = False
    throttle: int = 0
    corrupt: str | None = None
    status: int | None = None
    page: bytes | None = None
    whole: bool = False


class Hub(ThreadingHTTPServer):
    """The server; `requests` are the methods and paths of all requests so far."""

    daemon_threads = True

    def __init__(self, repositories: dict[str, HubRepository]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = repositories
        self.renamed: dict[str, str] = {}
        self.faults = Faults()
        self.requests: list[str] = []
        self.ranges: list[str] = []
        self.cuts: Counter[str] = Counter()
        self.blobs: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def cdn(self) -> str:
        """Where large files are: another host, which gets no token."""
        return f"http://localhost:{self.server_port}/cdn"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing when a client or this server closes a connection."""


@contextmanager
def hub_server(repositories: dict[str, HubRepository]) -> Iterator[Hub]:
    """A server that listens during the block."""
    hub = Hub(repositories)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


def use_hub(hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `huggingface_hub` in this process use a server, a cache below `home` and no token."""
    settings = {
        "ENDPOINT": hub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
    }
    for name, value in settings.items():
        monkeypatch.setattr(constants, name, value)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "level", logging.ERROR)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the client's, before it retries


def hub_environment(hub: Hub, home: Path) -> dict[str, str]:
    """Return the environment of a process that uses a server and a cache below `home`."""
    names = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE"}
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    return inherited | {
        "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"
    }  # fmt: skip


def files_of(directory: Path) -> dict[str, bytes]:
    """Read the files of a directory, as a repository has them."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@cache
def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@cache
def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self.route()

    def do_HEAD(self) -> None:
        self.route()

    def do_POST(self) -> None:
        self.route()

    def do_PUT(self) -> None:
        self.route()

    def route(self) -> None:
        """Answer by path."""
        path = unquote(urlsplit(self.path).path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(f"{self.command} {path}")
        faults = self.server.faults
        if faults.throttle and not path.startswith("/api/"):
            faults.throttle -= 1
            self.answer(429, headers={"Retry-After": "0"})
        elif faults.status:
            self.answer(faults.status, b"{}")
        elif faults.page is not None:
            self.answer(200, faults.page)
        elif path.startswith("/cdn/"):
            self.cdn(path.removeprefix("/cdn/"))
        elif path.startswith("/api/") and not path.startswith("/api/models/"):
            self.account(path)
        elif path.startswith("/api/models/"):
            self.api(*path.removeprefix("/api/models/").split("/", 3))
        elif ".git/info/lfs" in path:
            self.lfs_batch()
        else:
            owner, name, _, rest = path.removeprefix("/").split("/", 3)
            self.file(f"{owner}/{name}", *rest.split("/", 1))

    def answer(
        self, status: int, content: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def answer_json(self, value: Any) -> None:
        self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, headers={"X-Error-Code": code, "X-Error-Message": code})

    @property
    def token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def repository(self, name: str, *, of_file: bool = False) -> HubRepository | None:
        """Return a repository that the request may read; else answer, and return None."""
        repository = self.server.repositories.get(name)
        may_read = self.token in (READER, WRITER)
        if name in self.server.renamed:
            location = self.path.replace(name, self.server.renamed[name], 1)
            self.answer(307, headers={"Location": location})
        elif repository is None or (repository.private and not may_read):
            self.refuse(404 if may_read else 401, "RepoNotFound")
        elif of_file and repository.gated and not may_read:
            self.refuse(401, "GatedRepo")
        else:
            return repository
        return None

    def account(self, path: str) -> None:
        """Answer what concerns the user."""
        if self.token != WRITER:
            self.answer(401)
        elif path == "/api/whoami-v2":
            self.answer_json({"name": "ada", "type": "user", "orgs": [{"name": "org"}]})
        elif path == "/api/repos/create":
            request = json.loads(self.body)
            name = f"{request.get('organization') or 'ada'}/{request['name']}"
            self.server.repositories.setdefault(
                name, HubRepository({}, private=bool(request.get("private")))
            )
            self.answer_json({"url": f"{self.server.url}/{name}", "id": name, "name": name})
        elif path == "/api/validate-yaml":
            self.answer_json({"errors": [], "warnings": []})
        else:
            self.answer(404)

    def api(self, owner: str, name: str, kind: str = "", rest: str = "main") -> None:
        """Answer about a model."""
        of_file = kind == "auth-check"
        if (repository := self.repository(f"{owner}/{name}", of_file=of_file)) is None:
            return
        if kind == "auth-check":
            self.answer_json({})
            return
        if kind == "preupload":
            self.preupload()
            return
        if kind == "commit":
            self.commit(repository, f"{owner}/{name}", rest)
            return
        if (commit := repository.resolve(rest)) is None:
            self.refuse(404, "RevisionNotFound")
            return
        if kind == "tree":
            entries = repository.commits[commit].items()
            self.answer_json([entry(name, content) for name, content in entries])
            return
        self.answer_json({
            "id": f"{owner}/{name}", "sha": commit, "private": repository.private,
            "gated": "manual" if repository.gated else False, "cardData": repository.card,
            "tags": [], "downloads": 0, "likes": 0, "siblings": [],
        })  # fmt: skip

    def file(self, name: str, revision: str, path: str) -> None:
        """Answer the metadata of a file, and its content or where it is."""
        if (repository := self.repository(name, of_file=True)) is None:
            return
        if (commit := repository.resolve(revision)) is None:
            self.refuse(404, "RevisionNotFound")
            return
        if (content := repository.commits[commit].get(path)) is None:
            self.refuse(404, "EntryNotFound")
            return
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if len(content) < LFS_BYTES:
            self.content(path, content, headers | {"ETag": f'"{blob_id(content)}"'})
            return
        digest = sha256(content)
        self.server.blobs[digest] = content
        self.answer(302, headers=headers | {
            "Location": f"{self.server.cdn}/{digest}",
            "X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content)),
        })  # fmt: skip

    def cdn(self, digest: str) -> None:
        """Answer a large file, or take one."""
        if self.command == "PUT":
            self.server.blobs[digest] = self.body
            self.answer(200)
            return
        assert not self.token, "the token is the Hub's alone"
        self.content(digest, self.server.blobs[digest], {"ETag": f'"{digest}"'})

    def content(self, name: str, content: bytes, headers: dict[str, str]) -> None:
        """Answer a file's bytes, from where the request wants them."""
        faults = self.server.faults
        if faults.corrupt in (name, sha256(content)):
            content = bytes(len(content))
        requested = "" if faults.whole else self.headers.get("Range", "")
        first, _, last = requested.removeprefix("bytes=").partition("-")
        start, end = int(first or 0), min(int(last or len(content)), len(content) - 1) + 1
        part, is_part = content[start:end], end - start < len(content)
        if is_part:
            self.server.ranges.append(name)
            headers |= {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}
        is_cut = faults.cut and self.command == "GET" and not self.server.cuts[name]
        if not is_cut:
            self.answer(206 if is_part else 200, part, headers)
            return
        self.server.cuts[name] += 1
        self.send_response(200)
        for key, value in {"Content-Length": str(len(part)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(part[: len(part) // 2])
        self.wfile.flush()
        self.close_connection = True

    def preupload(self) -> None:
        """Say which files go to the storage of large files."""
        files = json.loads(self.body)["files"]
        self.answer_json({"files": [
            {"path": file["path"], "uploadMode": "lfs" if file["size"] >= LFS_BYTES else "regular",
             "shouldIgnore": False}
            for file in files
        ]})  # fmt: skip

    def lfs_batch(self) -> None:
        """Say where large files are to be put."""
        objects = json.loads(self.body)["objects"]
        self.answer_json({"transfer": "basic", "objects": [
            {"oid": file["oid"], "size": file["size"],
             "actions": {"upload": {"href": f"{self.server.cdn}/{file['oid']}", "header": {}}}}
            for file in objects
        ]})  # fmt: skip

    def commit(self, repository: HubRepository, name: str, branch: str) -> None:
        """Add the files of a commit."""
        if self.token != WRITER:
            self.answer(403)
            return
        files = dict(repository.commits[repository.branches[branch]])
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = repository.commit(branch, files)
        url = f"{self.server.url}/{name}/commit/{commit}"
        self.answer_json({"success": True, "commitOid": commit, "commitUrl": url})


def entry(name: str, content: bytes) -> dict[str, Any]:
    """Return a file as the Hub lists it."""
    listed: dict[str, Any] = {"type": "file", "path": name, "size": len(content)}
    if len(content) < LFS_BYTES:
        listed["oid"] = blob_id(content)
    else:
        lfs = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
        listed |= {"oid": "0" * 40, "lfs": lfs}
    return listed
