"""`baton serve` with several models: real processes, two on the scripted backend and the built-in model on IREE."""

import json
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.cli.commands.test_serve import DEADLINE_S, read_until, serving

FILE = """
backend = "scripted"
memory_budget = 10_000_000_000
[[models]]
name = "a"
load = "start"
context = 8_000
memory_bytes = 1_000_000_000
[[models]]
name = "b"
aliases = ["bee"]
memory_bytes = 8_900_000_000
[[models]]
name = "tiny"
backend = "iree"
memory_bytes = 8_900_000_000
"""
SERVE = ("-m", "cli", "serve", "--port")
TOKENS = 5_000
"""Tokens of a stream that lasts longer than a load."""


def complete(url: str, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": "Hello", "max_tokens": 8, "temperature": 0} | fields
    return httpx.post(f"{url}/v1/completions", json=body, timeout=DEADLINE_S)


def states(url: str) -> dict[str, str]:
    models = httpx.get(f"{url}/admin/models", timeout=DEADLINE_S).json()["models"]
    return {each["id"]: each["state"] for each in models}


class Stream(threading.Thread):
    """Reads a long stream to its end."""

    def __init__(self, url: str, tokens: int) -> None:
        super().__init__()
        self._url = url
        self._tokens = tokens
        self.began = threading.Event()
        self.text = ""
        self.done = False
        self.start()

    def run(self) -> None:
        body = {"model": "a", "prompt": "Hello", "max_tokens": self._tokens, "ignore_eos": True, "temperature": 0}
        with httpx.stream(
            "POST", f"{self._url}/v1/completions", json=body | {"stream": True}, timeout=DEADLINE_S
        ) as got:
            for line in got.iter_lines():
                if line == "data: [DONE]":
                    self.done = True
                elif line.startswith("data: "):
                    self.text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                    self.began.set()


@pytest.mark.exhaustive
def test_a_stream_goes_on_while_other_models_are_loaded_evicted_and_reloaded(tmp_path: Path) -> None:
    (tmp_path / "baton.toml").write_text(FILE)
    with serving([*SERVE, "0"], cwd=tmp_path) as process:
        url = json.loads(read_until(process, "ready")[-1])["url"]
        assert states(url) == {"a": "loaded", "b": "unloaded", "tiny": "unloaded"}
        expected = complete(url, "a", max_tokens=TOKENS, ignore_eos=True).json()["choices"][0]["text"]
        answers: dict[str, set[str]] = {"bee": set(), "tiny": set()}
        for model in ("tiny", "bee", "tiny"):
            stream = Stream(url, TOKENS)
            assert stream.began.wait(DEADLINE_S)
            answer = complete(url, model)
            assert answer.status_code == 200, answer.text
            answers[model].add(answer.json()["choices"][0]["text"])
            stream.join(DEADLINE_S)
            assert (stream.done, stream.text) == (True, expected)
        assert all(len(texts) == 1 for texts in answers.values()), "the same tokens after each load"
        assert states(url) == {"a": "loaded", "b": "unloaded", "tiny": "loaded"}
        for command in (["reload-model", "tiny"], ["unload", "tiny"], ["load", "bee"]):
            done = CliRunner().invoke(app, ["admin", *command, "--url", url])
            assert done.exit_code == 0, done.output
        assert states(url) == {"a": "loaded", "b": "loaded", "tiny": "unloaded"}
        written = CliRunner().invoke(app, ["generate", "bee", "-p", "Hello", "-n", "8", "--url", url])
        assert written.exit_code == 0, written.output
        shown = CliRunner().invoke(app, ["admin", "models", "--url", url]).output
        assert "8.9 GB" in shown
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    assert "model_failed" not in errors


def test_a_server_whose_models_are_all_loaded_on_first_use_says_so_and_is_taken_over(tmp_path: Path) -> None:
    models = ["--backend", "scripted", "--model", "a=", "--model", "b=", "--context", "20000"]
    with serving([*SERVE, "0", *models], cwd=tmp_path) as old:
        ready = json.loads(read_until(old, "ready")[-1])
        assert ready["models"] == ["a", "b"]
        url = ready["url"]
        assert httpx.get(f"{url}/health", timeout=DEADLINE_S).status_code == 200
        stream = Stream(url, TOKENS)
        assert stream.began.wait(DEADLINE_S)
        port = url.rpartition(":")[2]
        with serving([*SERVE, port, *models, "--take-over"], cwd=tmp_path) as new:
            read_until(new, "ready")
            assert complete(url, "b").status_code == 200
            stream.join(DEADLINE_S)
            assert stream.done
            assert old.wait(DEADLINE_S) == 0
            assert complete(url, "b").status_code == 200, "that of before may still have reached the old server"
            assert states(url) == {"a": "unloaded", "b": "loaded"}
            new.send_signal(signal.SIGTERM)
            new.communicate(timeout=DEADLINE_S)
        assert new.returncode == 0
