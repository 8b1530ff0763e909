"""Virtual environments with pinned packages, one for each peer, in Baton's cache folder."""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.harness.folders import default_cache
from bench.peers.build import PeerError

TORCH = "torch==2.13.0"
"""For the converters. pip's own options choose the build: that of PyPI for Linux brings CUDA."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The packages of a peer, and where they are installed."""

    name: str
    packages: tuple[str, ...]
    unwanted: tuple[str, ...] = ()
    """Dependencies that are removed again, because they do not load beside the others."""

    @property
    def folder(self) -> Path:
        """A change of the packages is another folder."""
        digest = hashlib.sha256(" ".join(self.packages).encode()).hexdigest()[:8]
        return default_cache() / "peers" / f"{self.name}-{digest}"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def missing(self) -> str:
        """Why it cannot be used; empty if it is installed."""
        return "" if self.python.is_file() else f"not installed: run python bench/peers/install.py {self.name}"

    def install(self) -> None:
        """Raises `PeerError` if pip fails; nothing is left then."""
        if not self.missing:
            return
        try:
            call(sys.executable, "-m", "venv", str(self.folder))
            call(str(self.python), "-m", "pip", "install", *self.packages)
            if self.unwanted:
                call(str(self.python), "-m", "pip", "uninstall", "--yes", *self.unwanted)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def run(self, *words: str) -> None:
        """Run a program of the environment. Raises `PeerError` if it fails."""
        call(str(self.folder / "bin" / words[0]), *words[1:])


def call(*command: str) -> None:
    """Run a command without network access to models. Raises `PeerError` if it fails, with the end of its output."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise PeerError(f"{Path(command[0]).name} ended with status {done.returncode}: {done.stderr.strip()[-500:]}")
