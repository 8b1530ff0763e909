"""iree-compile as a subprocess, with its results kept on disk by the digest of everything that they depend on."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from iree.compiler import version
from iree.compiler.tools.binaries import find_tool

from workers.iree import leash

COMPILE_SECONDS = 600.0
"""No graph takes a tenth of this; a compiler that hangs must not hang the worker."""


class CompileError(Exception):
    """iree-compile refused a graph, crashed, or took too long; the text is what it said."""


class Compiler:
    """Compiles modules for one target and caches them in a folder that several processes may share.

    An entry is a folder `DIGEST/` with the module and its checksum, renamed into place whole. Threads may share a
    compiler.
    """

    def __init__(self, cache_dir: Path, flags: Sequence[str], target: str) -> None:
        """`target` is what the flags leave to the machine: the CPU's features when they say `host`."""
        self._root = cache_dir / "graphs"
        self._flags = tuple(flags)
        self._target = target
        self._root.mkdir(parents=True, exist_ok=True)

    def compile(self, text: str) -> Path:
        """The compiled module's file. Raises `CompileError`."""
        entry = self._root / self._digest(text)
        if (file := _checked(entry)) is not None:
            return file
        with _locked(entry.with_suffix(".lock")):
            # Another process may have compiled it while this one waited.
            if (file := _checked(entry)) is None:
                shutil.rmtree(entry, ignore_errors=True)
                self._compile(text, entry)
                file = _checked(entry)
        if file is None:
            raise CompileError(f"{entry} is damaged just after it was written: is the disk full?")
        return file

    def _digest(self, text: str) -> str:
        parts = [text, *self._flags, version.VERSION, self._target]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]

    def _compile(self, text: str, entry: Path) -> None:
        for left in self._root.glob(f"{entry.name}.*.tmp"):  # of a process that died: the lock is ours
            shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{entry.name}.", suffix=".tmp", dir=self._root))
        try:
            module = folder / "module.vmfb"
            self._run(text, module)
            (folder / "sha256").write_text(_checksum(module))
            folder.rename(entry)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, text: str, module: Path) -> None:
        command = [find_tool("iree-compile"), "-", "-o", str(module), *self._flags]
        tied = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *command]
        try:
            done = subprocess.run(tied, input=text, text=True, capture_output=True, timeout=COMPILE_SECONDS)
        except subprocess.TimeoutExpired:
            raise CompileError(f"iree-compile took more than {COMPILE_SECONDS:.0f} s") from None
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines()[-3:]
            raise CompileError(f"iree-compile ended with {done.returncode}: " + "; ".join(errors)[:2000])


def _checked(entry: Path) -> Path | None:
    """The entry's module when it is whole: a cut file would be mapped and crash the process later."""
    module = entry / "module.vmfb"
    try:
        return module if (entry / "sha256").read_text() == _checksum(module) else None
    except OSError:
        return None


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel lets go of it when the process dies."""
    with file.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
