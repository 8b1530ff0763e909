"""`baton run`: on a running server, on one of its own, and with a model that is not here yet."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cli.commands.models.run import served_models
from cli.config.settings import Settings
from tests.cli.commands.models.commands import Commands
from tests.cli.commands.test_serve import SERVE, read_until, serving
from tests.cli.pseudo_terminal import Terminal
from tests.ports import port_for_later

SCRIPTED = {"BATON_BACKEND": "scripted"}


def alone(tmp_path: Path) -> dict[str, str]:
    """Variables of a command that finds no server, and leaves what it makes in a folder of its own."""
    return {
        "BATON_PORT": str(port_for_later()),
        "TMPDIR": str(tmp_path / "tmp"),
        "XDG_RUNTIME_DIR": str(tmp_path / "tmp"),
    }


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "tmp").mkdir()
    return alone(tmp_path)


def test_a_prompt_is_answered_by_a_server_of_its_own(
    baton: Commands, variables: dict[str, str], tmp_path: Path
) -> None:
    ended = baton.run("run", "", "Hello", "-n", "5", "--stats", **SCRIPTED, **variables)
    assert (ended.returncode, len(ended.stdout)) == (0, 6), ended.stderr
    assert "5 generated (length)" in ended.stderr
    assert [*(tmp_path / "tmp").iterdir()] == []


def test_a_chat_lasts_as_long_as_its_input(baton: Commands, variables: dict[str, str]) -> None:
    ended = baton.run("run", "", "-n", "3", given="Hi\n/exit\nnever\n", **SCRIPTED, **variables)
    assert ended.returncode == 0, ended.stderr
    first, second = ended.stdout.splitlines()
    assert (first.startswith("scripted. /help"), len(second)) == (True, 3)


def test_the_builtin_model_has_a_name(baton: Commands, variables: dict[str, str]) -> None:
    ended = baton.run("run", "baton-tiny", "What is the capital of France?", **variables)
    assert (ended.returncode, "Paris" in ended.stdout) == (0, True), ended.stderr


def test_a_missing_model_is_pulled_after_a_question(baton: Commands, variables: dict[str, str]) -> None:
    words = ("-m", "cli", "run", "org/random", "Hello", "-n", "3", "--backend", "scripted")
    with Terminal(words, baton.environment | variables) as terminal:
        terminal.wait_for("org/random is not on this machine. Download 439.6 kB?")
        terminal.type("n\n")
        terminal.wait_for("`baton pull org/random` downloads it")
        assert terminal.exit_status() == 1
    assert [*baton.snapshots()] == []
    with Terminal(words, baton.environment | variables) as terminal:
        terminal.wait_for("Download 439.6 kB?")
        terminal.type("y\n")
        assert terminal.exit_status() == 0
    assert len([*baton.snapshots()]) == 1
    baton.hub.requests.clear()
    again = baton.run("run", "org/random", "Hello", "-n", "3", HF_HUB_OFFLINE="1", **SCRIPTED, **variables)
    assert (again.returncode, baton.hub.requests) == (0, []), again.stderr


def test_without_a_terminal_a_missing_model_is_pulled(baton: Commands, variables: dict[str, str]) -> None:
    ended = baton.run("run", "org/random", "Hello", "-n", "3", **SCRIPTED, **variables)
    assert (ended.returncode, len(ended.stdout), len([*baton.snapshots()])) == (0, 4, 1), ended.stderr
    refused = baton.invoke("run", "org/none", "Hello", **variables)
    assert (refused.returncode, refused.stderr.startswith("Error: not found: ")) == (1, True)


def test_a_running_server_that_serves_the_model_is_used(baton: Commands, variables: dict[str, str]) -> None:
    """It has a key and another name for the model, by which the command finds it."""
    keys = {"BATON_API_KEY": "secret"}
    serve = [word for word in SERVE if word not in ("--port", "0")]
    with serving([*serve, "--name", "org/tiny"], baton.environment | variables | keys) as server:
        read_until(server, "ready")
        used = baton.invoke("run", "org/tiny", "Hello", "-n", "3", **keys, **variables)
        assert (used.returncode, len(used.stdout), [*baton.snapshots()]) == (0, 4, []), used.stderr
        named = baton.invoke(
            *("run", "org/tiny", "Hello", "-n", "3", "--url", f"http://127.0.0.1:{variables['BATON_PORT']}"), **keys
        )
        assert named.returncode == 0, named.stderr


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        ({"data": [{"id": "a", "aliases": ["b", "c"]}, {"id": "d"}]}, ["a", "b", "c", "d"]),
        ({"data": [{"id": "a", "aliases": None}]}, ["a"]),
        ({"data": ["a"]}, []),
        ([], []),
    ],
)
def test_a_running_server_is_found_by_all_names_of_its_models(
    monkeypatch: pytest.MonkeyPatch, answer: object, names: list[str]
) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=answer))
    client = httpx.Client(base_url="http://server", transport=transport)
    monkeypatch.setattr("cli.commands.models.run.server_client", lambda *_: client)
    assert served_models(Settings()) == names


def test_engine_options_are_those_of_a_server_of_its_own(baton: Commands, variables: dict[str, str]) -> None:
    """Beside one that serves the model already."""
    serve = [word for word in SERVE if word not in ("--port", "0")]
    with serving([*serve, "--name", "org/random"], baton.environment | variables) as server:
        read_until(server, "ready")
        own = baton.run("run", "org/random", "Hello", "-n", "3", "--context", "64", **SCRIPTED, **variables)
        assert (own.returncode, len([*baton.snapshots()])) == (0, 1), own.stderr


def test_engine_options_do_not_go_with_a_server_of_the_user(baton: Commands) -> None:
    refused = baton.invoke("run", "org/tiny", "Hello", "--context", "64", "--url", "http://127.0.0.1:9")
    assert (refused.returncode, "--context: not with --url" in refused.stderr) == (2, True)


def test_a_model_that_cannot_be_loaded_ends_the_command(baton: Commands, variables: dict[str, str]) -> None:
    published = baton.hub.repos["org/random"]
    published["tokenizer.json"] = b'{"model": {"type": "nonsense"}}'
    ended = baton.run("run", "org/random", "Hello", **variables)
    assert ended.returncode == 1
    assert "Error: " in ended.stderr
    assert "tokenizer.json" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_its_server_ends_with_it(variables: dict[str, str], tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "cli", "run", "", "--backend", "scripted"]
    with subprocess.Popen(
        command, env=os.environ | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"scripted.")
        process.send_signal(number)
        if number == signal.SIGINT:
            assert process.stdin is not None
            process.stdin.close()
        process.stdout.read()  # until the server and its workers have closed it, too
    sockets = [path for path in (tmp_path / "tmp").rglob("*") if path.is_socket()]
    assert sockets == []
