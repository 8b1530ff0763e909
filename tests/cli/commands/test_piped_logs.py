"""Commands that serve, on pipes: each line of the log is a JSON object, and nothing else is printed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.commands.test_serve import DEADLINE_S, SERVE, read_until, serving
from tests.cli.joining import joining_commands

WORKER_THAT_FAILS = """
import ctypes, os, sys, threading, time, warnings
if "workers" in sys.orig_argv:
    def fail():
        time.sleep(0.5)
        os.write(2, b"LLVM ERROR: out of memory\\n{not: json}\\n[1, 2]\\nno end of line, \\xff\\x1b[31m")
        warnings.warn("of Python")
        threading.excepthook = threading.__excepthook__
        threading.Thread(target=lambda: 1 / 0).start()
        time.sleep(0.2)
        ctypes.CDLL(None).abort() if os.environ["FAILS_BY"] == "abort" else os.kill(os.getpid(), 9)
    threading.Thread(target=fail, daemon=True).start()
"""


def events_of(text: str) -> list[dict[str, Any]]:
    """The lines of a log. Fails for anything else."""
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"event", "level", "timestamp", "process"} <= set(line) for line in lines)
    return lines


def run(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "cli", *words]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=DEADLINE_S)


@pytest.mark.parametrize("by", ["abort", "kill"])
def test_the_last_words_of_a_worker_are_lines_of_the_log(by: str, tmp_path: Path) -> None:
    """Native text, lines that are nearly JSON, warnings and tracebacks, of a worker that dies again and again."""
    (tmp_path / "sitecustomize.py").write_text(WORKER_THAT_FAILS)
    environment = {"PYTHONPATH": str(tmp_path), "FAILS_BY": by}
    with serving(SERVE, environment) as process:
        lines = read_until(process, "worker_restarts")
        process.send_signal(signal.SIGTERM)
        output, rest = process.communicate(timeout=DEADLINE_S)
    logged = events_of("\n".join([*lines, *rest.splitlines()]))
    said = " ".join(line["text"] for line in logged if line["event"] == "worker_output")
    for words in ("LLVM ERROR: out of memory", "{not: json}", "[1, 2]", "no end of line", "of Python", "ZeroDivision"):
        assert words in said
    assert output == ""


@pytest.mark.parametrize(
    ("words", "environment", "status", "problem"),
    [
        (["--max-batch-size", "0"], {}, 2, "--max-batch-size"),
        ([], {"BATON_MAX_QUEUE": "many"}, 2, "BATON_MAX_QUEUE"),
        (["--workers", "0"], {}, 1, "--workers 0 needs --listen-workers"),
        (["/no/such/model", "--backend", "iree"], {}, 1, "no such directory"),
    ],
    ids=["flag", "variable", "combination", "model"],
)
def test_an_error_of_serve_is_a_line_of_the_log(
    words: Sequence[str], environment: dict[str, str], status: int, problem: str
) -> None:
    backend = [] if "--backend" in words else ["--backend", "scripted"]
    done = run("serve", "--port", "0", *backend, *words, **environment)
    (line,) = events_of(done.stderr)
    assert (done.returncode, line["event"], line["level"], done.stdout) == (status, "command_failed", "error", "")
    assert problem in line["problem"]


def test_an_error_of_worker_is_a_line_of_the_log() -> None:
    done = run("worker", "--backend", "scripted")
    (line,) = events_of(done.stderr)
    assert (done.returncode, line["process"], line["event"]) == (1, "worker-host", "command_failed")
    assert "--join is needed" in line["problem"]


def test_an_unknown_variable_is_a_line_of_the_log() -> None:
    done = run("serve", "--workers", "0", BATON_OF_ANOTHER="1")
    first, last = events_of(done.stderr)
    assert (first["event"], first["level"], last["event"]) == ("variable_unknown", "warning", "command_failed")
    assert "BATON_OF_ANOTHER" in first["problem"]


def test_a_worker_for_another_machine_logs_nothing_but_lines(tmp_path: Path) -> None:
    gateway, worker = joining_commands(tmp_path)
    with serving(gateway) as serves, serving(worker) as joins:
        lines = read_until(serves, "ready")
        joins.send_signal(signal.SIGTERM)
        shown, joined = joins.communicate(timeout=DEADLINE_S)
        serves.send_signal(signal.SIGTERM)
        output, rest = serves.communicate(timeout=DEADLINE_S)
    assert (shown, output) == ("", "")
    assert {line["process"] for line in events_of(joined)} == {"worker-host", "worker"}
    assert events_of("\n".join([*lines, *rest.splitlines()]))[-1]["event"] == "ended"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_iree_logs_nothing_but_lines_on_a_cold_cache(tmp_path: Path) -> None:
    """Compilers included, those in the background too, and a worker that is killed while they run."""
    pytest.importorskip("iree.compiler")
    words = ["-m", "cli", "serve", "--backend", "iree", "--port", "0", "--cache-dir", str(tmp_path)]
    with serving(words) as process:
        lines = read_until(process, "ready")
        url = json.loads(lines[-1])["url"]
        body = {"model": "baton-tiny", "prompt": "The capital of France is", "max_tokens": 4}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=300, trust_env=False).status_code == 200
        (worker,) = httpx.get(f"{url}/admin/workers", timeout=60, trust_env=False).json()["workers"]
        os.kill(worker["pid"], signal.SIGKILL)
        lines += read_until(process, "worker_restarts")
        process.send_signal(signal.SIGTERM)
        output, rest = process.communicate(timeout=DEADLINE_S)
    logged = events_of("\n".join([*lines, *rest.splitlines()]))
    assert {"worker_loads", "ready", "worker_exited", "ended"} <= {line["event"] for line in logged}
    assert output == ""
