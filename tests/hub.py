"""A stand-in for the Hugging Face hub on this machine: as much of its HTTP API as huggingface_hub calls for runs."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_test"


@dataclass
class Repository:
    """Files by branch and by commit, and who may see them."""

    private: bool
    branches: dict[str, str] = field(default_factory=lambda: {"main": "0" * 40})
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {}})

    def write(self, branch: str, files: dict[str, bytes]) -> str:
        """A commit with all of these files."""
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[commit], self.branches[branch] = files, commit
        return commit

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[self.branches["main"]]


class Hub:
    """What the stand-in knows, and what it was asked."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.url, self.full = "", False

    def answer(self, method: str, path: str, body: bytes, token: str | None) -> tuple[int, object, dict[str, str]]:
        """Status, JSON or bytes, and headers."""
        for pattern, call in self.ROUTES:
            if got := re.fullmatch(pattern, f"{method} {path}"):
                named = {name: unquote(value) for name, value in got.groupdict().items() if value}
                name = named.get("name")
                there = self.repositories.get(name or "")
                if name and (there is None or (there.private and token != TOKEN)):
                    return 404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}
                if method in ("POST", "PUT") and token != TOKEN and "/lfs/" not in path:
                    return 401, {"error": "Invalid username or password."}, {}
                if there and method != "POST" and "revision" in named:
                    commit = there.branches.get(named["revision"], named["revision"])
                    if commit not in there.commits:
                        return 404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"}
                    named["revision"] = commit
                return call(self, body, **named)
        return 404, {"error": "The stand-in has no such address"}, {}

    def create(self, body: bytes):
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        new = name not in self.repositories
        if new:
            self.repositories[name] = Repository(asked.get("visibility") == "private")
        return 200 if new else 409, {"url": f"{self.url}/{name}"}, {}

    def validate(self, body: bytes):
        header = re.match(r"---\n(.*?)\n---\n", json.loads(body)["content"], flags=re.DOTALL)
        right = header is not None and isinstance(yaml.safe_load(header[1]), dict)
        return 200 if right else 400, {"warnings": [], "errors": [] if right else [{"message": "no header"}]}, {}

    def about(self, body: bytes, name: str, revision: str = ""):
        there = self.repositories[name]
        commit = revision or there.branches["main"]
        return 200, {"id": name, "sha": commit, "private": there.private}, {}

    def tree(self, body: bytes, name: str, revision: str):
        rows = []
        for path, content in self.repositories[name].commits[revision].items():
            row = {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            if path.endswith(".safetensors"):
                row["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            rows.append(row)
        return 200, rows, {}

    def branch(self, body: bytes, name: str, revision: str):
        there = self.repositories[name]
        new = revision not in there.branches
        there.branches.setdefault(revision, there.branches["main"])
        return 200 if new else 409, {}, {}

    def preupload(self, body: bytes, name: str, revision: str):
        modes = [
            {"path": path, "uploadMode": "lfs" if path.endswith(".safetensors") else "regular", "shouldIgnore": False}
            for path in (each["path"] for each in json.loads(body)["files"])
        ]
        return 200, {"files": modes}, {}

    def batch(self, body: bytes, name: str):
        asked = json.loads(body)["objects"]
        got = [each | {"actions": {"upload": {"href": f"{self.url}/lfs/{each['oid']}"}}} for each in asked]
        return 200, {"transfer": "basic", "objects": got}, {}

    def put(self, body: bytes, oid: str):
        if self.full:
            return 403, {"error": "storage limit reached"}, {}
        assert hashlib.sha256(body).hexdigest() == oid
        self.large[oid] = body
        return 200, {}, {}

    def commit(self, body: bytes, name: str, revision: str):
        there = self.repositories[name]
        files = dict(there.commits[there.branches[revision]])
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            match line["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.large[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        commit = there.write(revision, files)
        return 200, {"commitUrl": f"{self.url}/{name}/commit/{commit}", "commitOid": commit}, {}

    def resolve(self, body: bytes, name: str, revision: str, path: str):
        content = self.repositories[name].commits[revision].get(path)
        if content is None:
            return 404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"}
        return 200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": revision}

    NAME, REVISION = r"(?P<name>[^/]+/[^/]+?)", r"(?P<revision>[^/]+)"
    ROUTES = (
        (r"POST /api/repos/create", create),
        (r"POST /api/validate-yaml", validate),
        (rf"GET /api/models/{NAME}(/revision/{REVISION})?", about),
        (rf"GET /api/models/{NAME}/tree/{REVISION}", tree),
        (rf"POST /api/models/{NAME}/branch/{REVISION}", branch),
        (rf"POST /api/models/{NAME}/preupload/{REVISION}", preupload),
        (rf"POST /api/models/{NAME}/commit/{REVISION}", commit),
        (rf"POST /{NAME}\.git/info/lfs/objects/batch", batch),
        (r"PUT /lfs/(?P<oid>\w+)", put),
        (rf"(GET|HEAD) /{NAME}/resolve/{REVISION}/(?P<path>.+)", resolve),
    )


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """The address under which it answers, until the `with` ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = urlsplit(self.path).path
            hub.asked.append(f"{self.command} {path}")
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            status, plain, headers = hub.answer(self.command, path, body, token)
            content = plain if isinstance(plain, bytes) else json.dumps(plain).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_PUT = do

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        hub.url = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield hub.url
        finally:
            server.shutdown()
