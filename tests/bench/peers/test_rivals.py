"""Baton beside peers: all of the benchmark, with a scripted engine in place of a peer."""

import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("iree.runtime", reason="the IREE backend is not installed: pip install 'baton[iree]'")

from bench.peers import rivals
from bench.peers.build import PeerError
from bench.peers.child import ChildSession
from bench.peers.peer import RivalModel, Session
from bench.peers.precisions import PRECISIONS
from tests.bench.peers.children import write_child

LIMIT_S = 240
"""Starts with empty caches compile graphs."""


@dataclass(frozen=True)
class ScriptedPeer:
    """A peer whose engine decodes 4 tokens a second for each stream; see `tests/bench/peers/children.py`."""

    folder: Path
    name: str = "scripted"
    about: str = "a script"
    reason: str = ""
    convertible: bool = True

    def refusal(self, precision: str, cpu: str) -> str:
        return self.reason

    def install(self, cpu: str, jobs: int) -> None:
        raise NotImplementedError

    def prepare(self, model: RivalModel) -> None:
        if not self.convertible:
            raise PeerError("its converter failed")

    def start(self, model: RivalModel, caches: Path | None = None) -> Session:
        if caches is not None:
            (caches / "file").touch()
            (self.folder / "caches").write_text(str(caches))
        return ChildSession(sys.executable, write_child(self.folder), {"first": 5}, {})


@pytest.fixture
def _own_sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, *words: str, **peers: ScriptedPeer) -> str:
    """Returns the table."""
    monkeypatch.setenv("BATON_CACHE_DIR", str(cache / "graphs" / "bench"))  # that of tests/bench/test_smoke.py
    monkeypatch.setattr(rivals, "PEERS", peers)
    out = tmp_path / "out"
    words = ("--smoke", "--out", str(out), "--tokens", "32", "--peers", *peers, *words)
    monkeypatch.setattr(sys, "argv", ["rivals.py", *words])
    rivals.main()
    return (out / "table.md").read_text()


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.usefixtures("_own_sigterm")
def test_peers_are_measured_beside_baton(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRECISIONS, "bf16", replace(PRECISIONS["bf16"], equal=0.0))
    table = run(tmp_path, cache_dir, monkeypatch, scripted=ScriptedPeer(tmp_path))
    assert "tiny bf16, decode 2 " in table
    cells = [row.split("|") for row in table.splitlines() if row.startswith("|")]
    rows = {row[1].strip(): row[3].strip() for row in cells}
    assert rows["tiny bf16, decode 2"].startswith("8.0 (")
    assert rows["tiny bf16, prefill 128"].startswith("64.0 (")
    assert rows["tiny bf16, context 64"].startswith("4.0 (")
    assert rows["tiny bf16, empty caches, tokens/s of streams 2"].endswith("x)")
    assert not Path((tmp_path / "caches").read_text()).exists()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.usefixtures("_own_sigterm")
def test_what_a_peer_cannot_do_is_in_the_table(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = ScriptedPeer(tmp_path, "without", reason="not installed")
    broken = ScriptedPeer(tmp_path, "broken", convertible=False)
    with pytest.raises(SystemExit, match="something was not measured"):
        run(tmp_path, cache_dir, monkeypatch, "--prefills", "--contexts", "--cold", without=without, broken=broken)
    table = (tmp_path / "out" / "table.md").read_text()
    assert "- (a) not measured: without: not installed\n- (b) not measured: broken: its converter failed" in table


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.usefixtures("_own_sigterm")
def test_a_peer_with_another_model_ends_the_run(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="scripted does not run the same model"):
        run(tmp_path, cache_dir, monkeypatch, "--cold", scripted=ScriptedPeer(tmp_path))
