"""A server on loopback that speaks the API of the Hugging Face hub, as far as downloads need it, and its failures."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from urllib.parse import unquote, urlsplit

from tests.ports import QuietHandler, serving_http

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""

_TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)")
_INFO = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class HubServer:
    """Serves repositories. Its fields may be changed while it runs."""

    url: str = ""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """The files of each repository, by their paths."""
    failure: Answer | None = None
    """Answer of every request in place of the right one."""
    break_after: int | None = None
    """Bytes after which the next body of a file ends, its connection closed."""
    answers_ranges: bool = True
    requests: list[str] = field(default_factory=list)
    """Method and path of each request, and the range of a file that it asks for."""
    _lock: Lock = field(default_factory=Lock)

    def add(self, repo: str, folder: Path) -> None:
        """Publish the files of a folder."""
        self.repos[repo] = {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }

    def commit(self, repo: str) -> str:
        """The commit of the branch main, which changes with the files."""
        digest = hashlib.sha1()
        for name, content in sorted(self.repos[repo].items()):
            digest.update(name.encode() + content)
        return digest.hexdigest()

    def answer(self, path: str) -> Answer:
        """The answer to a request for a path."""
        if self.failure is not None:
            return self.failure
        if found := _TREE.fullmatch(path):
            return self._tree(*found.groups())
        if found := _FILE.fullmatch(path):
            return self._file(*found.groups())
        if found := _INFO.fullmatch(path):
            return self._info(*found.groups())
        return hub_error(404, "", "no such page")

    def _info(self, repo: str, revision: str | None) -> Answer:
        if (refused := self._refused(repo, revision)) is not None:
            return refused
        siblings = [{"rfilename": name} for name in self.repos[repo]]
        return _json({"id": repo, "modelId": repo, "sha": self.commit(repo), "siblings": siblings, "tags": []})

    def _tree(self, repo: str, revision: str) -> Answer:
        if (refused := self._refused(repo, revision)) is not None:
            return refused
        files = self.repos[repo].items()
        return _json(
            [{"type": "file", "path": name, "size": len(content), "oid": _etag(content)} for name, content in files]
        )

    def _file(self, repo: str, revision: str, name: str) -> Answer:
        if (refused := self._refused(repo, revision)) is not None:
            return refused
        if (content := self.repos[repo].get(name)) is None:
            return hub_error(404, "EntryNotFound", "no such file")
        return 200, {"etag": f'"{_etag(content)}"', "x-repo-commit": self.commit(repo)}, content

    def _refused(self, repo: str, revision: str | None) -> Answer | None:
        if repo not in self.repos:
            return hub_error(404, "RepoNotFound", "Repository not found")
        if revision not in (None, "main", self.commit(repo)):
            return hub_error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return None

    @contextmanager
    def serve(self) -> Iterator["HubServer"]:
        """Serve on a free port until the block ends."""
        hub = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._send(body=False)

            def do_GET(self) -> None:
                self._send(body=True)

            def _send(self, *, body: bool) -> None:
                path = unquote(urlsplit(self.path).path)
                asked = self.headers.get("range", "") if hub.answers_ranges else ""
                with hub._lock:
                    hub.requests.append(f"{self.command} {path} {asked}".rstrip())
                    status, headers, content = hub.answer(path)
                    most = hub.break_after if body and "etag" in headers else None
                    if most is not None:
                        hub.break_after = None
                start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and status == 200 else 0
                if start:
                    status = 206
                    headers = headers | {"content-range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(content) - start))
                self.end_headers()
                if body:
                    self.wfile.write(content[start:] if most is None else content[start : start + most])
                self.close_connection = self.close_connection or most is not None

        with serving_http(Handler) as self.url:
            yield self


def hub_error(status: int, code: str = "", message: str = "", **headers: str) -> Answer:
    """The answer of the hub that refuses a request, with its code and its message."""
    shown = {"x-error-code": code} if code else {}
    shown |= {"x-error-message": message} if message else {}
    return status, shown | headers | {"content-type": "application/json"}, json.dumps({"error": message}).encode()


def _json(value: object) -> Answer:
    return 200, {"content-type": "application/json"}, json.dumps(value).encode()


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
