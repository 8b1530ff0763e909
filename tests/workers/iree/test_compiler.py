"""The cache of compiled graphs: hits, damage, races, and compilers that do not outlive their worker."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workers.iree import leash
from workers.iree.compiler import CompileError, Compiler

FLAGS = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx")
TEXT = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"


class CountingCompiler(Compiler):
    """Counts how often the real compiler ran."""

    runs = 0

    def _run(self, text: str, module: Path) -> None:
        self.runs += 1
        super()._run(text, module)


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


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "no checksum"])
def test_a_damaged_entry_is_compiled_again(tmp_path: Path, damage: str) -> None:
    compiler = CountingCompiler(tmp_path, FLAGS, "cpu")
    file = compiler.compile(TEXT)
    whole = file.read_bytes()
    if damage == "cut":
        file.write_bytes(whole[:-1])
    elif damage == "changed":
        file.write_bytes(whole[:100] + b"\xff" + whole[101:])
    elif damage == "gone":
        file.unlink()
    else:
        (file.parent / "sha256").unlink()
    assert compiler.compile(TEXT).read_bytes() == whole
    assert compiler.runs == 2


def test_leftovers_of_a_dead_process_are_removed(tmp_path: Path) -> None:
    compiler = Compiler(tmp_path, FLAGS, "cpu")
    name = compiler._digest(TEXT)
    left = tmp_path / "graphs" / f"{name}.abcdef.tmp"
    left.mkdir()
    compiler.compile(TEXT)
    assert [entry.name for entry in entries(tmp_path)] == [name]


def test_two_at_once_compile_once(tmp_path: Path) -> None:
    compilers = [CountingCompiler(tmp_path, FLAGS, "cpu") for _ in range(2)]
    files: list[Path] = []
    threads = [threading.Thread(target=lambda c=c: files.append(c.compile(TEXT))) for c in compilers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert files[0] == files[1]
    assert sum(compiler.runs for compiler in compilers) == 1


def test_refusal_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    compiler = Compiler(tmp_path, FLAGS, "cpu")
    with pytest.raises(CompileError, match="error:"):
        compiler.compile("func.func @f() -> i32 { return %no : i32 }")
    assert entries(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_compiler_dies_with_its_parent() -> None:
    """The parent starts a command on the leash, says its id, and is killed."""
    program = (
        "import os, subprocess, sys\n"
        f"command = [sys.executable, '-I', '-S', {leash.__file__!r}, str(os.getpid()), sys.executable, '-c',\n"
        "           'import os; print(os.getpid(), flush=True); os.read(0, 1)']\n"
        "subprocess.run(command, stdin=subprocess.PIPE, check=False)\n"
    )
    reading, writing = os.pipe()  # the child's standard input stays open: only the signal can end it
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=reading, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) != parent.pid
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert parent.stdout.read() == ""  # ends only when the child, which holds the other end, is gone
    parent.stdout.close()
    os.close(reading)
    os.close(writing)


def test_the_leash_does_not_start_for_a_dead_parent() -> None:
    command = [sys.executable, "-I", "-S", str(leash.__file__), "1", "/bin/echo", "started"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
