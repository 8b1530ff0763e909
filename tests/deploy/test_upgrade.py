"""The recipe for upgrades, command by command as on the page, with streams running through."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.baton_serve.installation import ROOT, dependencies
from tests.cli.commands.test_serve import DEADLINE_S, PIPE_BYTES, read_until
from tests.docs.commands import console_blocks
from tests.ports import port_for_later

PAGE = (ROOT / "docs" / "operations" / "lifecycle.md").read_text()
RECIPE = re.split(r"\n##+ ", PAGE.partition("\n## Upgrade\n")[2])[0]
COMMAND_S = 300.0
"""Time for a command, which may make a virtual environment."""
BODY = {"model": "tiny", "prompt": "Hello", "max_tokens": 4000, "temperature": 0, "ignore_eos": True, "stream": True}


class Shell:
    """Runs commands as a user does whose home is `home`, offline."""

    def __init__(self, home: Path, port: int) -> None:
        self._exports = ""
        self._port = port
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("BATON_", "PYTEST", "COV"))}
        # `pip install .` builds with what is installed, and the dependencies are those of this environment.
        offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_QUIET": "1"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        self._environment = kept | offline | {"HOME": str(home), "PATH": path}

    def command(self, line: str) -> list[str]:
        here = line.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{self._port}")
        return ["bash", "-c", f"{self._exports}exec {here}"]

    def run(self, line: str) -> str:
        """Its standard output."""
        if line.startswith("export "):
            self._exports += f"{line}; "
            return ""
        done = subprocess.run(
            self.command(line), cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=COMMAND_S
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, line: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.command(line),
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pipesize=PIPE_BYTES,
            text=True,
        )


class Streams:
    """A client that has one stream after the other, on a connection of its own for each."""

    def __init__(self, url: str) -> None:
        self.texts: list[str] = []
        self.problems: list[str] = []
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.texts.append(self.ask())
            except (httpx.HTTPError, LookupError) as problem:
                self.problems.append(repr(problem))
                return

    def ask(self) -> str:
        """The text of a whole stream. Raises `LookupError` for one without an end, and `httpx.HTTPError`."""
        text, ended = "", False
        with (
            httpx.Client(trust_env=False, timeout=DEADLINE_S) as client,
            client.stream("POST", f"{self._url}/v1/completions", json=BODY) as response,
        ):
            response.raise_for_status()
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    ended = True
                elif line.startswith("data: "):
                    text += json.loads(line[6:])["choices"][0]["text"]
        if not ended:
            raise LookupError(f"a stream without an end: {text!r}")
        return text


def end(servers: list["subprocess.Popen[str]"]) -> None:
    """End what a failed test has left."""
    for server in servers:
        server.kill()
        server.communicate()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_recipe_upgrades_and_rolls_back_under_streams(tmp_path: Path) -> None:
    port = port_for_later()
    shell = Shell(tmp_path, port)
    settings = tmp_path / ".config" / "baton" / "baton.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'backend = "scripted"\nname = "tiny"\nport = {port}\nworkers = 2\n')
    commands = [line for block in console_blocks(RECIPE) for line in block]
    install = [line for line in commands if re.search(r"export|-m venv|pip install", line)]
    assert install == commands[:3]
    streams = Streams(f"http://127.0.0.1:{port}")
    servers: list[subprocess.Popen[str]] = []

    def serve(line: str) -> None:
        servers.append(shell.start(line))
        read_until(servers[-1], "ready")

    def follow(line: str) -> str:
        made = re.search(r"-m venv ~(\S+)", line)
        if made is None:
            return shell.run(line)
        # With the pip of this environment, which needs not be installed first.
        output = shell.run(f"{line} --without-pip")
        folder = Path(f"{tmp_path}{made[1]}")
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "dependencies.pth").write_text(dependencies())
        pip = folder / "bin" / "pip"
        pip.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pip --python "{folder}" "$@"\n')
        pip.chmod(0o755)
        return output

    with ExitStack() as ended:
        ended.callback(end, servers)
        # The old version, which was installed by the same commands, is that of this environment.
        old = tmp_path / ".local" / "share" / "baton" / "blue" / "bin"
        old.mkdir(parents=True)
        (old / "baton").symlink_to(Path(sys.executable).with_name("baton"))
        for line in install:
            follow(line)
        serve("~/.local/share/baton/blue/bin/baton serve")
        undisturbed = streams.ask()
        assert len(undisturbed) == BODY["max_tokens"]
        with streams.running():
            for line in commands[len(install) :]:
                if " serve" in line:
                    assert line.endswith("--take-over")
                    serve(line)
                    assert servers[-2].wait(DEADLINE_S) == 0
                    continue
                output = follow(line)
                if line.endswith("admin workers"):
                    assert output.count("ready") >= 2, output
        servers[-1].terminate()
        assert servers[-1].wait(DEADLINE_S) == 0
    assert len(servers) == 3
    assert streams.problems == []
    assert set(streams.texts) == {undisturbed}
