import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from bench.harness.child_server import NotReadyError, free_port, running, wait_until_ok

SERVER = "import http.server, sys; http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]))"


def start(*words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_the_wait_ends_when_the_server_answers() -> None:
    port = free_port()
    with start(SERVER, str(port)) as process:
        wait_until_ok(f"http://127.0.0.1:{port}/", process, 60)
        process.terminate()


def test_a_server_that_ends_is_noticed() -> None:
    with start("raise SystemExit(3)") as process, pytest.raises(NotReadyError, match="ended with status 3"):
        wait_until_ok(f"http://127.0.0.1:{free_port()}/", process, 60)


def test_a_server_that_takes_too_long_is_noticed() -> None:
    with start("input()") as process, pytest.raises(NotReadyError, match="was not ready after 0 s"):
        wait_until_ok(f"http://127.0.0.1:{free_port()}/", process, 0)


def test_a_server_runs_as_long_as_the_block() -> None:
    url = f"http://127.0.0.1:{(port := free_port())}/"
    with running([sys.executable, "-c", SERVER, str(port)], url, 60, stderr=subprocess.DEVNULL):
        urllib.request.urlopen(url, timeout=60).close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=60)


def test_a_server_that_takes_too_long_is_ended() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with pytest.raises(NotReadyError), running(command, f"http://127.0.0.1:{free_port()}/", 0):
        pass
