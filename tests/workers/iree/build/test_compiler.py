"""iree-compile as a process: what a module is found by, what is said of failures."""

import signal
import subprocess
from pathlib import Path

import pytest

from workers.errors import LoadRefused
from workers.iree.build.cache import CacheError
from workers.iree.build.compiler import BACKGROUND_SECONDS, COMPILE_SECONDS, CompileError, Compiler

FLAGS = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx")
TEXT = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"


class CountingCompiler(Compiler):
    """Counts how often the real compiler ran."""

    runs = 0

    def _run(self, text: str, limit_s: float) -> bytes:
        self.runs += 1
        return super()._run(text, limit_s)


def entries(folder: Path) -> list[Path]:
    return [entry for entry in (folder / "graphs").iterdir() if entry.is_dir()]


def test_second_time_is_a_hit(tmp_path: Path) -> None:
    first, second = CountingCompiler(tmp_path, FLAGS, "cpu"), CountingCompiler(tmp_path, FLAGS, "cpu")
    file = first.compile(TEXT)
    assert file.stat().st_size > 0
    assert second.compile(TEXT) == file
    assert (first.runs, second.runs) == (1, 0)


@pytest.mark.parametrize("change", ["text", "flags", "target"])
def test_everything_that_matters_is_in_the_key(tmp_path: Path, change: str) -> None:
    compiler = CountingCompiler(tmp_path, FLAGS, "cpu")
    flags = (*FLAGS, "--iree-opt-level=O1") if change == "flags" else FLAGS
    other = CountingCompiler(tmp_path, flags, "another cpu" if change == "target" else "cpu")
    text = TEXT.replace("@f", "@g") if change == "text" else TEXT
    assert compiler.compile(TEXT) != other.compile(text)
    assert other.runs == 1


def test_found_by_key_without_its_text(tmp_path: Path) -> None:
    compiler = CountingCompiler(tmp_path, FLAGS, "cpu")
    key = compiler.key("what decides the text")
    assert compiler.find(key) is None
    file = compiler.compile(TEXT, key)
    assert Compiler(tmp_path, FLAGS, "cpu").find(key) == file
    assert compiler.find(compiler.key("something else")) is None


def test_an_upgrade_that_changes_no_graph_compiles_nothing(tmp_path: Path) -> None:
    """The source code that the graph is made of has another digest, and so the graph another key."""
    compiler = CountingCompiler(tmp_path, FLAGS, "cpu")
    file = compiler.compile(TEXT, compiler.key("source code"))
    edited = compiler.key("source code with a comment")
    assert compiler.find(edited) is None
    assert compiler.compile(TEXT, edited) == file
    assert compiler.find(edited) == file
    assert compiler.runs == 1


def test_a_full_disk_is_not_the_compilers_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = subprocess.CompletedProcess([], 1, b"", b"error: cannot open output file: No space left on device")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: said)
    with pytest.raises(CacheError, match="graphs: cannot keep a compiled graph: No space left on device"):
        Compiler(tmp_path, FLAGS, "cpu").compile(TEXT)


def test_a_killed_compiler_has_said_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = subprocess.CompletedProcess([], -signal.SIGKILL, b"", b"")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: killed)
    with pytest.raises(CompileError, match=r"^iree-compile was ended by signal 9$") as failed:
        Compiler(tmp_path, FLAGS, "cpu").compile(TEXT)
    assert not isinstance(failed.value, LoadRefused), "there may be memory for it the next time"


def test_a_compiler_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def run(command: list[str], *, timeout: float, **_: object) -> None:
        limits.append(timeout)
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    for background, limit_s in ((False, COMPILE_SECONDS), (True, BACKGROUND_SECONDS)):
        with pytest.raises(CompileError, match=rf"^iree-compile took more than {limit_s:.0f} s$"):
            Compiler(tmp_path, FLAGS, "cpu").compile(TEXT, background=background)
    assert limits == [COMPILE_SECONDS, BACKGROUND_SECONDS]


def test_nothing_waits_for_a_compiler_in_the_background(tmp_path: Path) -> None:
    """Another process wants the module that it compiles, and makes it meanwhile."""
    found: list[Path] = []

    class Slow(CountingCompiler):
        def _run(self, text: str, limit_s: float) -> bytes:
            made = super()._run(text, limit_s)
            found.append(Compiler(tmp_path, FLAGS, "cpu").compile(TEXT))
            return made

    slow = Slow(tmp_path, FLAGS, "cpu")
    assert slow.compile(TEXT, "key", background=True) == found[0] == slow.find("key")
    assert slow.compile(TEXT, background=True) == found[0]
    assert slow.runs == 1


def test_refusal_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    compiler = Compiler(tmp_path, FLAGS, "cpu")
    with pytest.raises(CompileError, match=r"error:.*take another --device, --dtype or --backend") as refused:
        compiler.compile("func.func @f() -> i32 { return %no : i32 }")
    assert isinstance(refused.value, LoadRefused), "it would be refused again"
    assert entries(tmp_path) == []
