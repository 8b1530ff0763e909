"""iree-compile as a subprocess, and its results on disk, keyed by the digest of everything that they depend on."""

import functools
import hashlib
import json
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from actors.process.parent_death import tied
from workers.errors import LoadRefused
from workers.iree.build.cache import MAX_BYTES, CacheError, GraphCache

COMPILE_SECONDS = 600.0
"""No graph takes a tenth of this; a compiler that hangs must not hang the worker."""
BACKGROUND_SECONDS = 6 * 3600.0
"""The same for a compiler that gets the processor time that others leave: on a machine that is never idle, next to
none."""
NO_ROOM = "No space left on device"


@functools.cache
def _compiler_version() -> str:
    return version("iree-base-compiler")  # from its metadata: a worker that finds all in the cache never imports it


class CompileError(Exception):
    """Raised when iree-compile rejects a graph, crashes, or takes too long; the text is its output."""


class GraphRefused(CompileError, LoadRefused):
    """iree-compile rejects a graph, as it would each time."""


class Compiler:
    """Compiles modules for one target and caches them (`GraphCache`). Threads may share a compiler."""

    def __init__(self, cache_dir: Path, flags: Sequence[str], target: str, max_bytes: int = MAX_BYTES) -> None:
        """`target` is what the flags leave to the machine: the CPU's features where they name `host`.

        Raises `CacheError`.
        """
        self._folder = cache_dir / "graphs"
        self._cache = GraphCache(self._folder, max_bytes)
        self._flags = tuple(flags)
        self._target = target

    def key(self, source: str) -> str:
        """Return the digest of a text and of how it would be compiled."""
        parts = [source, *self._flags, _compiler_version(), self._target]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]

    def find(self, key: str) -> Path | None:
        """Return the module that `compile` made for a key, in this process or another."""
        return self._cache.by_key(key)

    def compile(self, text: str, key: str = "", *, background: bool = False) -> Path:
        """Return the compiled module's file, to be found again by `key` if one is given.

        In the `background` it may take hours, and another process that wants the module does not wait for it. Raises
        `CompileError` and `CacheError`.
        """
        digest = self.key(text)
        if background and self._cache.find(digest) is None:
            made = self._run(text, BACKGROUND_SECONDS)
            file = self._cache.get(digest, lambda module: module.write_bytes(made))
        else:
            file = self._cache.get(digest, lambda module: module.write_bytes(self._run(text, COMPILE_SECONDS)))
        if key:
            self._cache.remember(key, digest)
        return file

    def _run(self, text: str, limit_s: float) -> bytes:
        """Return the compiled module. Raises `CompileError` and `CacheError`."""
        from iree.compiler.tools.binaries import find_tool  # takes 60 MB, and most workers find all in the cache

        command = [find_tool("iree-compile"), "-", "-o", "-", *self._flags]
        try:
            done = subprocess.run(tied(command), input=text.encode(), capture_output=True, timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise CompileError(f"iree-compile took more than {limit_s:.0f} s") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace")
            if NO_ROOM in said:
                raise CacheError(self._folder, NO_ROOM)
            if done.returncode < 0:  # most likely by the kernel, which had no memory left
                raise CompileError(f"iree-compile was ended by signal {-done.returncode}")
            errors = [line for line in said.splitlines() if "error:" in line] or said.splitlines()[-3:]
            raise GraphRefused(
                f"iree-compile ended with {done.returncode}: {'; '.join(errors)[:2000]}. It would again: take another "
                "--device, --dtype or --backend"
            )
        return done.stdout
