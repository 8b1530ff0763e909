"""`baton top` beside a real server: on a terminal, into a pipe, and without a server."""

import threading

import httpx
import pytest

from tests.cli.command_line import baton
from tests.cli.commands.test_serve import SERVE, read_until, serving, url_of
from tests.cli.pseudo_terminal import Terminal
from tests.ports import port_for_later

TOP = ("-m", "cli", "top", "--interval", "0.2")


def test_a_terminal_shows_the_server_until_the_user_ends_it() -> None:
    with serving((*SERVE, "--max-batch-size", "8")) as server:
        url = url_of(read_until(server, "ready"))
        with Terminal((*TOP, "--url", url), {}) as terminal:
            terminal.wait_for(f"Baton at {url}")
            terminal.wait_for("0/8")
            body = {"model": "scripted", "prompt": "a", "max_tokens": 3000}
            request = threading.Thread(target=httpx.post, args=(f"{url}/v1/completions",), kwargs={"json": body})
            request.start()
            terminal.wait_for("ms")  # a latency: the request was seen
            request.join()
            server.kill()
            terminal.wait_for("no server answers")
            terminal.interrupt()
            assert terminal.exit_status() == 0


@pytest.mark.parametrize(
    "keys",
    [{}, {"BATON_API_KEY": "one"}, {"BATON_ADMIN_KEY": "two"}, {"BATON_API_KEY": "one", "BATON_ADMIN_KEY": "two"}],
    ids=["no key", "API key", "admin key", "both"],
)
def test_a_pipe_gets_one_picture(keys: dict[str, str]) -> None:
    with serving(SERVE, keys) as server:
        url = url_of(read_until(server, "ready"))
        done = baton("top", "--url", url, **keys)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Baton at {url}\n")
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["model", "scripted", "worker", "w0"]
    assert "\x1b" not in done.stdout


def test_without_a_server_it_says_so() -> None:
    url = f"http://127.0.0.1:{port_for_later()}"
    done = baton("top", "--url", url)
    assert done.returncode == 1
    assert f"no server answers at {url}" in done.stderr
