"""The engine beside a peer: all of the benchmark, with scripts in place of llama.cpp's programs."""

import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton[iree]'")

from bench import engine
from bench.peers.llama_cpp import PROGRAMS
from bench.peers.precisions import PRECISIONS

PROGRAM = f"""#!{sys.executable}
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

words = dict(zip(sys.argv[1:], sys.argv[2:]))
if Path(sys.argv[0]).name == "llama-bench":
    print(json.dumps([{{"avg_ts": 50.0}}]))
    sys.exit()
if Path(sys.argv[0]).name == "llama-batched-bench":
    print(json.dumps({{"speed_tg": 80.0}}))
    sys.exit()

together = threading.Barrier(int(words["-np"]))


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        if self.path == "/completion":
            self.wfile.write(json.dumps({{"tokens": [5] * body["n_predict"]}}).encode())
            return
        for _ in range(body["max_tokens"]):
            together.wait()
            self.event({{"choices": [{{"text": "x"}}]}})
        self.event({{"choices": [{{"text": "", "finish_reason": "length"}}]}})
        self.event({{"choices": [], "usage": {{"completion_tokens": body["max_tokens"]}}}})
        self.wfile.write(b"data: [DONE]\\n\\n")

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\\n\\n")
        self.wfile.flush()


ThreadingHTTPServer(("127.0.0.1", int(words["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    for name in PROGRAMS:
        (tmp_path / name).write_text(PROGRAM)
        (tmp_path / name).chmod(0o700)
    return tmp_path


@pytest.fixture
def _own_sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run(programs: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_CACHE_DIR", str(cache / "graphs" / "bench"))  # that of tests/bench/test_smoke.py
    words = ["--smoke", "--llama-cpp", str(programs), "--out", str(programs / "out")]
    monkeypatch.setattr(sys, "argv", ["engine.py", *words])
    engine.main()


@pytest.mark.slow
@pytest.mark.usefixtures("_own_sigterm")
def test_a_peer_is_measured_beside_the_engine(
    programs: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PRECISIONS, "bf16", replace(PRECISIONS["bf16"], equal=0.0))
    run(programs, cache_dir, monkeypatch)
    table = (programs / "out" / "table.md").read_text()
    assert table in capsys.readouterr().out
    figure = r" +[\d.,]+ \|"
    ratio = r" +\d+\.\d\dx \|"
    for streams, rate in ((1, 50.0), (2, 80.0)):
        line = rf"^\| tiny bf16 decode {streams} +\|{figure} +{rate} \|{ratio}{figure}{figure}{ratio}{figure}"
        assert re.search(line, table, re.MULTILINE), table
    assert re.search(rf"^\| tiny bf16 prefill 512 \|{figure} +50.0 \|{ratio}", table, re.MULTILINE), table


@pytest.mark.slow
@pytest.mark.usefixtures("_own_sigterm")
def test_a_peer_with_another_model_ends_the_run(
    programs: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=r"bf16\.gguf is not the same model: llama.cpp's tokens differ from ours"):
        run(programs, cache_dir, monkeypatch)
