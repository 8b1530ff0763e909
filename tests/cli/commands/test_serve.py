"""`baton serve` as a process: it says that it is ready, answers, and ends without leaving anything behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from cli.commands.serve import log_level, run_server
from cli.config.errors import CommandFailed
from cli.config.model import ChosenModel
from cli.config.settings import Settings
from tests.cli.command_line import baton
from tests.cli.pseudo_terminal import Terminal

SERVE = ("-m", "cli", "serve", "--backend", "scripted", "--port", "0")
DEADLINE_S = 100.0
PIPE_BYTES = 1 << 20
"""Room for the log of a server that a test does not read."""


@contextmanager
def serving(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process with a prefix tier of its own: in that of this user it would find what other tests have computed."""
    with tempfile.TemporaryDirectory(prefix="tier-", ignore_cleanup_errors=True) as tier:
        process = subprocess.Popen(
            [sys.executable, "-P", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pipesize=PIPE_BYTES,
            text=True,
            env={**os.environ, "BATON_PREFIX_CACHE_DIR": tier, **(environment or {})},
            cwd=cwd,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def read_until(process: subprocess.Popen[str], event: str) -> list[str]:
    """The lines of the log up to this event."""
    assert process.stderr is not None
    lines: list[str] = []
    # A program that says nothing more ends here, and the test with it; how long it serves is not bounded.
    watchdog = threading.Timer(2 * DEADLINE_S, process.kill)
    watchdog.start()
    try:
        for line in process.stderr:
            lines.append(line.rstrip("\n"))
            if json.loads(line)["event"] == event:
                return lines
    finally:
        watchdog.cancel()
    raise AssertionError(f"it ended before {event!r}: {lines}")


def url_of(lines: Sequence[str]) -> str:
    found = re.search(r"https?://127\.0\.0\.1:\d+", "\n".join(lines))
    assert found
    return found[0]


def test_it_serves_and_ends_on_sigterm() -> None:
    with serving([*SERVE, "--workers", "2", "--name", "tiny"]) as process:
        ready = json.loads(read_until(process, "ready")[-1])
        assert (ready["model"], ready["backend"], ready["slots"]) == ("tiny", "scripted", 16)
        url = ready["url"]
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 8}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=DEADLINE_S)
        workers = httpx.get(f"{url}/admin/workers", timeout=DEADLINE_S).json()["workers"]
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert output == ""
    assert len(answer.json()["choices"][0]["text"]) == 8
    assert [worker["name"] for worker in workers] == ["w0", "w1"]
    assert process.returncode == 0, errors
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker["pid"], 0)


def test_the_server_answers_what_generate_answers() -> None:
    words = ["-p", "Hello", "-n", "12", "--no-chat-template"]
    with serving(SERVE) as process:
        url = url_of(read_until(process, "ready"))
        answers = [
            subprocess.run(
                [sys.executable, "-P", "-m", "cli", "generate", *words, *source],
                capture_output=True,
                text=True,
                check=True,
                timeout=DEADLINE_S,
            ).stdout
            for source in (["--url", url], ["--backend", "scripted"])
        ]
    assert answers[0] == answers[1]
    assert len(answers[0]) == 13


def test_settings_come_from_the_file_and_the_environment(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text('name = "from-the-file"\nport = 0\nbackend = "scripted"')
    environment = {"BATON_CONFIG": str(tmp_path / "b.toml"), "BATON_API_KEY": "secret"}
    with serving(("-m", "cli", "serve"), environment) as process:
        lines = read_until(process, "ready")
        url = url_of(lines)
        assert "secret" not in "\n".join(lines)
        assert httpx.get(f"{url}/v1/models", timeout=DEADLINE_S).status_code == 401
        key = {"Authorization": "Bearer secret"}
        models = httpx.get(f"{url}/v1/models", headers=key, timeout=DEADLINE_S).json()
        assert [model["id"] for model in models["data"]] == ["from-the-file"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("listen", "open_"), [(("--host", "0.0.0.0"), True), (("--host", "0.0.0.0", "--api-key", "k"), False), ((), False)]
)
def test_a_public_server_without_a_key_logs_a_warning(listen: Sequence[str], open_: bool) -> None:
    with serving([*SERVE, *listen]) as process:
        lines = read_until(process, "ready")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
    assert ("open_to_everybody" in {json.loads(line)["event"] for line in lines}) == open_


def test_a_port_in_use_is_a_command_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with serving([*SERVE[:-2], "--port", port]) as process:
            _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert "cannot listen on 127.0.0.1" in errors
    assert "choose another port" in errors
    assert "Traceback" not in errors


def test_a_directory_without_a_model_is_a_command_error(tmp_path: Path) -> None:
    ended = baton("serve", str(tmp_path), "--port", "0")
    assert ended.returncode == 1
    assert "config.json" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_on_a_terminal_it_serves_and_ends_on_ctrl_c() -> None:
    with Terminal(SERVE, {}) as terminal:
        seen = terminal.wait_for("Stop it with Ctrl-C.")
        assert "Ready: scripted is served on http://127.0.0.1:" in seen
        assert "Chat with it in a browser: http://127.0.0.1:" in seen
        terminal.interrupt()
        assert terminal.exit_status() == 0


def test_the_default_log_level_on_a_terminal_is_warning() -> None:
    assert log_level(Settings(), terminal=True) == "warning"
    assert log_level(Settings(), terminal=False) == "info"
    assert log_level(Settings(log_level="info"), terminal=True) == "info"


def test_a_take_over_needs_a_local_worker(tmp_path: Path) -> None:
    settings = Settings(workers=0, listen_workers="tcp://127.0.0.1:7000", keys_dir=str(tmp_path))
    with pytest.raises(CommandFailed, match="--take-over needs a worker of its own"):
        run_server(settings, take_over=True)


def test_the_predecessor_is_checked_before_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*_: object) -> None:
        raise AssertionError("a model was looked for")

    monkeypatch.setattr(ChosenModel, "choose", unwanted)
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:  # it answers 501
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            with pytest.raises(CommandFailed, match="does not hand over: it is not a Baton of this user"):
                run_server(Settings(port=other.server_port), take_over=True)
        finally:
            other.shutdown()
            thread.join()
    with pytest.raises(AssertionError, match="a model was"):  # the port is free, so that it is not refused
        run_server(Settings(port=other.server_port), take_over=True)
