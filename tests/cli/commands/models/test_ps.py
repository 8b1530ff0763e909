"""`baton ps` beside real servers, and beside one that describes its models."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.client.administration import Administration
from cli.commands.models.loaded import loaded_models
from cli.config.errors import CommandFailed
from cli.config.settings import Settings
from tests.cli.command_line import baton
from tests.cli.commands.test_serve import SERVE, read_until, serving, url_of
from tests.ports import QuietHandler, port_for_later, serving_http

DESCRIBED = [
    {
        **{"id": "big", "aliases": ["b", "large"], "state": "loaded", "bytes": 5_800_000_000, "last_used_s": 61.2},
        **{"workers": 2, "backend": "iree", "context": 4096, "keep_alive_s": 300.0},
    },
    {"id": "small", "aliases": [], "state": "unloaded", "bytes": None, "last_used_s": None, "keep_alive_s": None},
]


def ps(*words: str) -> "subprocess.CompletedProcess[str]":
    return baton("ps", *words)


@contextmanager
def answering(body: object, status: int = 200) -> Iterator[str]:
    """A server that answers `/admin/models` so."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            content = json.dumps(body).encode()
            self.send_response(status if self.path == "/admin/models" else 500)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with serving_http(Handler) as url:
        yield url


def test_the_models_of_a_server_are_shown_as_it_describes_them() -> None:
    with answering({"models": DESCRIBED}) as url:
        shown = ps("--url", url)
        assert json.loads(ps("--url", url, "--json").stdout) == {"models": DESCRIBED}
    assert shown.returncode == 0
    rows = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert rows[1] == "big, b, large loaded 5.8 GB 2 iree 4096 61 s ago 300 s"
    assert rows[2] == "small unloaded - - - - - -"


@pytest.mark.parametrize("place", ["a port", "a Unix socket"])
def test_the_models_of_a_running_server_are_shown(place: str, tmp_path: Path) -> None:
    unix = ("--no-tcp", "--unix-socket", str(tmp_path / "baton.sock")) if place == "a Unix socket" else ()
    with serving((*SERVE, "--workers", "2", *unix)) as server:
        lines = read_until(server, "ready")
        url = f"unix:{tmp_path / 'baton.sock'}" if unix else url_of(lines)
        models = json.loads(ps("--url", url, "--json").stdout)["models"]
        table = ps("--url", url).stdout.splitlines()
    assert [(model["id"], model["state"], model["workers"]) for model in models] == [("scripted", "loaded", 2)]
    assert table[1].split()[:2] == ["scripted", "loaded"]


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (["ready", "given_up"], "loaded"),
        (["loading", "given_up"], "loading"),
        (["backoff"], "loading"),
        (["given_up", "given_up"], "failed"),
        (["stopped"], "unloaded"),
    ],
)
def test_a_server_without_the_route_is_described_by_its_workers(
    states: list[str], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [{"model": "m", "state": each, "backend": "iree" if each == "ready" else None} for each in states]
    client = Administration.of("http://127.0.0.1:9", Settings())
    monkeypatch.setattr(client, "find", lambda path: None)
    monkeypatch.setattr(client, "get", lambda path: {"workers": workers})
    with client:
        (model,) = loaded_models(client)
    backend = "iree" if state == "loaded" else None
    assert model == {"id": "m", "state": state, "workers": len(states), "backend": backend}


@pytest.mark.parametrize("body", [{}, {"models": 1}, {"models": [{"id": "x"}]}])
def test_another_answer_is_refused(body: object) -> None:
    with (
        answering(body) as url,
        Administration.of(url, Settings()) as client,
        pytest.raises(CommandFailed, match="did not answer as a Baton server does; check --url"),
    ):
        loaded_models(client)


def test_without_a_server_it_says_so() -> None:
    url = f"http://127.0.0.1:{port_for_later()}"
    done = ps("--url", url)
    assert (done.returncode, f"no server answers at {url}" in done.stderr) == (1, True)
